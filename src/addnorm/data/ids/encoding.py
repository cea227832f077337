"""The encoded corpus, and the functions with which tasks encode their examples."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import compress
from typing import Any, Literal

import numpy as np

from addnorm.data.example import has_signals
from addnorm.data.example_columns import source_texts
from addnorm.data.examples import Corpus, Example, Medium, Report
from addnorm.data.ids.compact import IGNORE as IGNORE
from addnorm.data.ids.compact import Compact, Encoded, Rows
from addnorm.data.ids.framing import around, framed_rows, in_groups, whole_texts
from addnorm.data.ids.layout import ONE_EACH, Layout, Positions
from addnorm.data.tokenizing.pieces import Advance, Ids, ids_of
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, choices

Longer = Literal["leave_out", "shorten"]
"""The treatment of an example that is too long."""


@dataclass(frozen=True)
class EncodedCorpus:
    """The encoded examples of one task in three splits, with reports on them.

    `bos_id` and `pad_id` mean something for text alone. `characters` has the length of each text of
    a language model, by split, `n_labels` the number of classes of images and clips.
    """

    task: str
    bos_id: int
    pad_id: int
    train: Sequence[Encoded]
    valid: Sequence[Encoded] = ()
    test: Sequence[Encoded] = ()
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])
    characters: Mapping[str, Ids] = field(default_factory=dict[str, Ids])
    medium: Medium = "text"
    n_labels: int = 0
    tokenizer: Tokenizer | None = field(default=None, compare=False)
    """The tokenizer of plain texts."""
    layout: Layout = ONE_EACH
    """How targets and inputs are cut and batched together."""
    places: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The file of each example of a split, by its index, where it was read from one."""
    special: tuple[int, int] = (0, 1)
    """The number of special tokens before each input text, and after it."""

    @property
    def splits(self) -> dict[str, Sequence[Encoded]]:
        """The three splits by name, including empty ones."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def lengths(self, examples: Sequence[Encoded]) -> list[int]:
        """Return the length of each example in tokens or frames; the longer of two sides."""
        return self.layout.lengths_of(examples)

    def within(self, max_len: int, longer: Longer = "leave_out") -> "EncodedCorpus":
        """Return the corpus without examples longer than `max_len`; reports count these.

        Raises `InputError` if a split loses all of its examples.
        """
        fits = {k: [n <= max_len for n in self.lengths(v)] for k, v in self.splits.items()}
        if longer == "leave_out":
            reason = f"longer than {max_len} tokens"
            return self.keeping(fits, reason, f"is longer than max_len={max_len}")
        long = {k: [i for i, fit in enumerate(v) if not fit] for k, v in fits.items()}
        cut = {split: self._cut(self.splits[split], max_len) for split in long if long[split]}
        shorter = replace(self, **cut).with_targets(f" within {max_len} tokens")
        reports = {**shorter.reports}
        for split in cut:
            used = {example.index for example in shorter.splits[split]}
            indices = (self.splits[split][k].index for k in long[split])
            places = [self._place(split, index) for index in indices if index in used]
            before = reports[split].shortened
            reports[split] = replace(reports[split], shortened=[*before, *places])
        return replace(shorter, reports=reports)

    def _cut(self, examples: Sequence[Encoded], max_len: int) -> Compact:
        return Compact.of(
            self.layout.shortened(example, max_len, self.special) for example in examples
        )

    def with_targets(self, where: str = "") -> "EncodedCorpus":
        """Return the corpus of examples with targets that the model's outputs can match.

        The reports count the others.

        Raises `InputError` if a split loses all of its examples.
        """
        fits = {split: self._have_targets(examples) for split, examples in self.splits.items()}
        corpus = self.keeping(fits, f"nothing to predict{where}", f"has nothing to predict{where}")
        fits = {k: self.layout.have_outputs(examples) for k, examples in corpus.splits.items()}
        what = f"more tokens to write than the model has outputs for its input{where}"
        return corpus.keeping(fits, what, f"has {what}")

    def _place(self, split: str, index: int) -> str:
        """The file of an example; its number if it has no file."""
        if split in self.places:
            return self.places[split][index]
        return f"{split} example {index + 1}"

    def for_input(self, n_positions: Positions) -> "EncodedCorpus":
        """Return the corpus for models whose number of outputs is `n_positions(size)`."""
        return replace(self, layout=self.layout.for_input(n_positions))

    def _have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Return whether each example has a target; for a plain text, a token before its end."""
        if self.tokenizer is not None and isinstance(examples, Compact):
            return (examples.tokens.lengths > n_before(self.tokenizer)).tolist()
        return self.layout.have_targets(examples)

    def keeping(
        self, fits: Mapping[str, Sequence[bool]], reason: str, every: str
    ) -> "EncodedCorpus":
        """Return the corpus of the examples marked true; reports count the others, with a reason.

        Raises `InputError`, with the words `every`, if no example of a split fits.
        """
        changed: Any = {}
        reports: dict[str, Report] = {}
        for split, examples in self.splits.items():
            n = len(examples)
            others = [] if all(fits[split]) else [k for k in range(n) if not fits[split][k]]
            places = [self._place(split, examples[k].index) for k in others]
            report = self.reports.get(split, Report(n, n))
            if places and len(places) == n:
                first = f": {places[0]} …" if split in self.places else ""
                raise InputError(f"every {SPLITS[split]} example {every}{first}")
            if places:
                left_out = {**report.left_out, reason: [*report.left_out.get(reason, ()), *places]}
                report = replace(report, used=report.used - len(places), left_out=left_out)
                chosen = compress(examples, fits[split])
                compact = isinstance(examples, Compact)
                changed[split] = Compact.of(chosen) if compact else list(chosen)
            if report.read:
                reports[split] = report
        return replace(self, **changed, reports=reports)


SPLITS = {"train": "training", "valid": "validation", "test": "test"}
"""The splits in messages."""


def n_before(tokenizer: Tokenizer) -> int:
    """Return the number of special tokens that `write_texts` puts before each text."""
    return len(around("language", tokenizer)[0]) or 1


def encode_texts(
    corpus: Corpus, tokenizers: Tokenizers, layout: Layout, advance: Advance = lambda _: None
) -> EncodedCorpus:
    """Encode the plain texts of a language model; `advance` receives the characters done."""
    splits: Any = {k: in_memory(v, tokenizers, advance) for k, v in corpus.splits.items()}
    return EncodedCorpus(
        corpus.task,
        tokenizers.target.bos_id,
        tokenizers.target.pad_id,
        **splits,
        reports=corpus.reports,
        characters={k: characters_of(v) for k, v in corpus.splits.items()},
        tokenizer=tokenizers.source,
        layout=layout,
    )


def in_memory(examples: Sequence[Example], tokenizers: Tokenizers, advance: Advance) -> Compact:
    """Encode the texts of a language model in memory."""
    out = io.BytesIO()
    lengths = write_texts(examples, tokenizers, out, advance)
    return Compact.documents(np.frombuffer(out.getbuffer(), id_type(tokenizers)), lengths)


def write_texts(
    examples: Sequence[Example],
    tokenizers: Tokenizers,
    out: io.BufferedIOBase,
    advance: Advance = lambda _: None,
) -> Ids:
    """Write the ids of a language model's texts one after another, each with its end token.

    Returns the length of each without its end. Raises `InputError` for a tokenizer without one.
    """
    tokenizer, dtype = tokenizers.source, id_type(tokenizers)
    if tokenizer.end_id is None:
        raise InputError("the tokenizer has no end token, so no text to learn from would end")
    # GPT-2 puts nothing before a prompt, but learnt that a text begins after the end of another.
    start = np.array(around("language", tokenizer)[0] or (tokenizer.bos_id,), dtype)
    end = np.array([tokenizer.end_id], dtype)
    lengths: list[int] = []
    for n, ids in ids_of(tokenizer, source_texts(examples), dtype, advance):
        if n == len(lengths):
            out.write((end if n else end[:0]).tobytes() + start.tobytes())
            lengths.append(len(start))
        out.write(ids.tobytes())
        lengths[n] += len(ids)
    out.write((end if lengths else end[:0]).tobytes())
    return np.array(lengths, np.int64)


def id_type(tokenizers: Tokenizers) -> "np.dtype[Any]":
    """Return the integer type of ids: two bytes for a vocabulary below 65,536, else four."""
    tokenizer = tokenizers.source
    special = (*around("language", tokenizer)[0], tokenizer.bos_id, tokenizer.end_id or 0)
    n_ids = max(tokenizer.vocab_size, 1 + max(special))
    return np.dtype(np.uint16 if n_ids < 2**16 else np.uint32)


def characters_of(examples: Sequence[Example]) -> Ids:
    """Return the length of each text in characters."""
    return np.fromiter(map(len, source_texts(examples)), np.int64, len(examples))


def encoded_inputs(
    examples: Sequence[Example], tokenizers: Tokenizers | None, *, apart: bool = False
) -> Iterator[Encoded]:
    """Yield the input of each example without targets: its signal, or its one or two texts in ids.

    With `apart` two texts are encoded separately.
    """
    if not examples or has_signals(examples[0].medium):
        return (Encoded(i, [], [], example.signal()) for i, example in enumerate(examples))
    assert tokenizers is not None
    read = enumerate(whole_texts(tokenizers.source, examples, apart=apart))
    return (Encoded(i, text.ids, [], types=text.types, spans=text.spans) for i, text in read)


def written_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids of each target text; empty for a text with only special tokens."""
    n_special = sum(map(len, around("translation", tokenizer)))
    for ids in in_groups("translation", tokenizer, texts):
        yield ids if len(ids) > n_special else []


def written_rows(tokenizer: Tokenizer, texts: Sequence[str]) -> Rows:
    """Return the same ids as `written_ids`, in one array."""
    rows = framed_rows("translation", tokenizer, texts)
    n_special = sum(map(len, around("translation", tokenizer)))
    return replace(rows, lengths=np.where(rows.lengths > n_special, rows.lengths, 0))


def numbers_of(labels: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    """Return the number of each label. Raises `InputError` for an unknown one."""
    for label in labels:
        if label not in numbers:
            raise InputError(f"unknown label {label!r}.{choices(label, numbers)}")
    return [numbers[label] for label in labels]


def encode(*arguments: Any, **options: Any) -> EncodedCorpus:
    """Call `addnorm.runs.encoded_data.encode`, by its former path."""
    return import_module("addnorm.runs.encoded_data").encode(*arguments, **options)
