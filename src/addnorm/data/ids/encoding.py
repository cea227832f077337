"""From a corpus to numbers: what a model of each task reads, and what it has to say."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from addnorm.data.examples import (
    Chat,
    Corpus,
    Example,
    Medium,
    MultiLabelled,
    Report,
    Scored,
    ScoredSeries,
    Task,
    labels_of,
    signal_of,
    source_text,
    target_text,
    words_of,
)
from addnorm.data.ids.answers import ids_and_answers
from addnorm.data.ids.compact import Compact, Encoded, shortened, texts_of
from addnorm.data.ids.framing import around, in_groups, whole_texts, words_as_read
from addnorm.data.ids.sentence_pairs import Read
from addnorm.data.tokenizing.pieces import Advance, Ids, ids_of
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, choices

IGNORE = -100
"""The target where nothing is to be predicted."""

Longer = Literal["leave_out", "shorten"]
"""What to do with an example that is too long."""


@dataclass(frozen=True)
class EncodedCorpus:
    """Encoded examples of one task in three splits, with the reports on them.

    `bos_id` and `pad_id` mean something for text alone. `characters` has the length of each text of
    a language model, by split, `n_labels` the number of classes of images and clips.
    """

    task: Task
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
    """What made the ids of plain texts."""
    apart: bool = False
    """Whether the two texts of a pair are encoded each by itself."""
    special: tuple[int, int] = (0, 1)
    """The number of special tokens before each text that is read, and after it."""

    @property
    def splits(self) -> dict[str, Sequence[Encoded]]:
        """The three splits by name, empty ones too."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def length(self, example: Encoded) -> int:
        """How long an example is: its tokens or frames, and where it has two sides the longer."""
        if self.apart:
            return max(map(len, texts_of(example)))
        if example.signal is not None:
            return max(example.signal.shape[-1], len(example.targets))
        if self.task == "translation":
            return max(len(example.tokens), len(example.targets))
        return len(example.tokens)

    def lengths(self, examples: Sequence[Encoded]) -> list[int]:
        """The length of each of some examples."""
        if self.apart or not isinstance(examples, Compact):
            return [self.length(example) for example in examples]
        read, said = examples.tokens.lengths, examples.targets.lengths
        return (np.maximum(read, said) if self.task == "translation" else read).tolist()

    def within(self, max_len: int, longer: Longer = "leave_out") -> "EncodedCorpus":
        """The same corpus with no example longer than `max_len`; the reports say what it cost.

        Raises `InputError` when that leaves nothing of a split.
        """
        fits = {k: [n <= max_len for n in self.lengths(v)] for k, v in self.splits.items()}
        if longer == "leave_out":
            reason = f"longer than {max_len} tokens"
            return self.keeping(fits, reason, f"is longer than max_len={max_len}")
        long = {split: [k for k, fit in enumerate(some) if not fit] for split, some in fits.items()}
        cut = {
            split: self._cut(self.splits[split], max_len) for split, some in long.items() if some
        }
        shorter = replace(self, **cut).with_targets(f" within {max_len} tokens")
        reports = {**shorter.reports}
        for split in cut:
            used = {one.index for one in shorter.splits[split]}
            indices = (self.splits[split][k].index for k in long[split])
            places = [_place(split, index) for index in indices if index in used]
            before = reports[split].shortened
            reports[split] = replace(reports[split], shortened=[*before, *places])
        return replace(shorter, reports=reports)

    def _cut(self, examples: Sequence[Encoded], max_len: int) -> Compact:
        facts: Any = {"special": self.special, "apart": self.apart}
        return Compact.of(shortened(self.task, one, max_len, **facts) for one in examples)

    def with_targets(self, where: str = "") -> "EncodedCorpus":
        """The examples that have something to predict; others are left out and counted.

        Raises `InputError` when that leaves nothing of a split.
        """
        fits = {split: self._have_targets(examples) for split, examples in self.splits.items()}
        return self.keeping(fits, f"nothing to predict{where}", f"has nothing to predict{where}")

    def _have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Whether each example has a target: of a plain text, a token besides its end."""
        if self.task == "forecasting":
            return [True] * len(examples)
        if isinstance(examples, Compact) and examples.values is None:
            if self.task == "language" and self.tokenizer is not None:
                return (examples.tokens.lengths > n_before(self.tokenizer)).tolist()
            return (examples.targets.count_except(IGNORE) > 0).tolist()
        return [one.values is not None or any(i != IGNORE for i in one.targets) for one in examples]

    def keeping(
        self, fits: Mapping[str, Sequence[bool]], reason: str, every: str
    ) -> "EncodedCorpus":
        """The examples that fit; others are counted in the reports, for one reason.

        Raises `InputError` where a split has examples, `every` one of which does not fit.
        """
        kept: Any = {}
        reports: dict[str, Report] = {}
        for split, examples in self.splits.items():
            n = len(examples)
            places = [_place(split, examples[k].index) for k in range(n) if not fits[split][k]]
            report = self.reports.get(split, Report(n, n))
            if places and len(places) == n:
                raise InputError(f"every {SPLITS[split]} example {every}")
            if places:
                left_out = {**report.left_out, reason: [*report.left_out.get(reason, ()), *places]}
                report = replace(report, used=report.used - len(places), left_out=left_out)
                chosen = compress(examples, fits[split])
                compact = isinstance(examples, Compact)
                kept[split] = Compact.of(chosen) if compact else list(chosen)
            if report.read:
                reports[split] = report
        return replace(self, **kept, reports=reports)


SPLITS = {"train": "training", "valid": "validation", "test": "test"}
"""The splits in words."""


def _place(split: str, index: int) -> str:
    return f"{split} example {index + 1}"


def n_before(tokenizer: Tokenizer) -> int:
    """The special tokens before each text of a language model, as `write_texts` begins it."""
    return len(around("language", tokenizer)[0]) or 1


def encode(
    corpus: Corpus,
    tokenizers: Tokenizers | None,
    labels: Sequence[str] | None = None,
    advance: Advance = lambda _: None,
    *,
    apart: bool = False,
) -> EncodedCorpus:
    """Encode every example; `labels` numbers the classes or tags, by default those of the corpus.

    `advance` hears how the texts for a language model come along. What is read or written as text
    has tokenizers. With `apart` each of two texts is encoded by itself. Raises `InputError` for a
    label that is not among them.
    """
    number = {label: n for n, label in enumerate(corpus.labels if labels is None else labels)}
    if tokenizers is None and corpus.has_text:
        raise InputError("the data have texts, and there is no tokenizer: give [tokenizer]")
    if tokenizers is not None and not corpus.has_text:
        raise InputError(
            f"the data are {corpus.medium}, which no tokenizer reads: leave [tokenizer] out"
        )
    if tokenizers is None or corpus.medium != "text":
        return _signals(corpus, tokenizers, number)
    bos_id, pad_id = tokenizers.target.bos_id, tokenizers.target.pad_id
    if corpus.task == "language" and not isinstance(corpus.train[0], Chat):
        splits = {k: in_memory(v, tokenizers, advance) for k, v in corpus.splits.items()}
        characters = {k: characters_of(v) for k, v in corpus.splits.items()}
        facts: Any = {**splits, "characters": characters, "tokenizer": tokenizers.source}
        return EncodedCorpus("language", bos_id, pad_id, **facts, reports=corpus.reports)
    encoded_sides = {
        split: _ENCODE[corpus.task](examples, tokenizers, number, apart)
        for split, examples in corpus.splits.items()
    }
    encoded: Any = {
        split: Compact.of(
            Encoded(i, read.ids, said, None, _values(corpus.splits[split][i], number), *read[1:])
            for i, (read, said) in enumerate(sides)
        )
        for split, sides in encoded_sides.items()
    }
    before, after = around(corpus.task, tokenizers.source)
    facts: Any = {"reports": corpus.reports, "apart": apart, "special": (len(before), len(after))}
    return EncodedCorpus(corpus.task, bos_id, pad_id, **encoded, **facts)


def in_memory(examples: Sequence[Example], tokenizers: Tokenizers, advance: Advance) -> Compact:
    """The texts of a language model in ids."""
    out = io.BytesIO()
    lengths = write_texts(examples, tokenizers, out, advance)
    return Compact.documents(np.frombuffer(out.getbuffer(), id_type(tokenizers)), lengths)


def write_texts(
    examples: Sequence[Example],
    tokenizers: Tokenizers,
    out: io.BufferedIOBase,
    advance: Advance = lambda _: None,
) -> Ids:
    """Write the ids of the texts of a language model side by side, with the end of each after it.

    Returns the length of each without its end. Raises `InputError` where the tokenizer has none.
    """
    tokenizer, dtype = tokenizers.source, id_type(tokenizers)
    if tokenizer.end_id is None:
        raise InputError("the tokenizer has no end token, so no text to learn from would end")
    # GPT-2 reads a prompt as it is, but learnt that a text begins after the end of another.
    start = np.array(around("language", tokenizer)[0] or (tokenizer.bos_id,), dtype)
    end = np.array([tokenizer.end_id], dtype)
    lengths: list[int] = []
    for n, ids in ids_of(tokenizer, map(source_text, examples), dtype, advance):
        if n == len(lengths):
            out.write((end if n else end[:0]).tobytes() + start.tobytes())
            lengths.append(len(start))
        out.write(ids.tobytes())
        lengths[n] += len(ids)
    out.write((end if lengths else end[:0]).tobytes())
    return np.array(lengths, np.int64)


def id_type(tokenizers: Tokenizers) -> "np.dtype[Any]":
    """Two bytes an id where the vocabulary has less than 65,536, else four."""
    tokenizer = tokenizers.source
    own = (*around("language", tokenizer)[0], tokenizer.bos_id, tokenizer.end_id or 0)
    return np.dtype(np.uint16 if max(tokenizer.vocab_size, 1 + max(own)) < 2**16 else np.uint32)


def characters_of(examples: Sequence[Example]) -> Ids:
    """The length of each text."""
    return np.array([len(source_text(example)) for example in examples], np.int64)


def _signals(
    corpus: Corpus, tokenizers: Tokenizers | None, number: Mapping[str, int]
) -> EncodedCorpus:
    """Images or clips, with the numbers of their classes or the ids of their texts."""
    target = None if tokenizers is None else tokenizers.target

    def encoded(examples: Sequence[Example]) -> list[Encoded]:
        if target is None:
            targets = [_numbers(example, number) for example in examples]
        else:
            targets = written_ids(target, [target_text(one) for one in examples])
        both = enumerate(zip(examples, targets, strict=True))
        return [
            Encoded(i, [], ids, signal_of(example), _values(example, number))
            for i, (example, ids) in both
        ]

    splits: Any = {split: encoded(examples) for split, examples in corpus.splits.items()}
    ids = {"bos_id": target.bos_id, "pad_id": target.pad_id} if target else {}
    facts: Any = {"bos_id": 0, "pad_id": 0, **ids, **splits}
    return EncodedCorpus(
        corpus.task, **facts, reports=corpus.reports, medium=corpus.medium, n_labels=len(number)
    )


Sides = Iterator[tuple[Read, list[int]]]
"""What is read of each example, and its targets."""


def _translation(examples: Sequence[Example], tokenizers: Tokenizers, *_: object) -> Sides:
    sources = [source_text(example) for example in examples]
    targets = [target_text(example) for example in examples]
    return zip(
        map(Read, in_groups("translation", tokenizers.source, sources)),
        written_ids(tokenizers.target, targets),
        strict=True,
    )


def written_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """The ids of texts to write; none at all of one without a token but the special ones."""
    n_special = sum(map(len, around("translation", tokenizer)))
    for ids in in_groups("translation", tokenizer, texts):
        yield ids if len(ids) > n_special else []


def _classification(
    examples: Sequence[Example], tokenizers: Tokenizers, number: Mapping[str, int], apart: bool
) -> Sides:
    read = whole_texts(tokenizers.source, examples, apart=apart)
    for example, one in zip(examples, read, strict=True):
        yield one, _numbers(example, number)


def _every_output(
    examples: Sequence[Example], tokenizers: Tokenizers, _: object, apart: bool
) -> Sides:
    read = whole_texts(tokenizers.source, examples, apart=apart)
    return ((one, []) for one in read)


def _values(example: Example, number: Mapping[str, int]) -> Shaped[Tensor, " outputs"] | None:
    """What every output has to say of a text; None for tasks of other targets."""
    match example:
        case Scored(_, values) | ScoredSeries(_, values):
            return torch.tensor(values)
        case MultiLabelled():
            has = torch.zeros(len(number), dtype=torch.bool)
            has[_numbers(example, number)] = True
            return has
        case _:
            return None


def _tagging(
    examples: Sequence[Example], tokenizers: Tokenizers, number: Mapping[str, int], *_: object
) -> Sides:
    for example in examples:
        tokens, first = words_as_read(tokenizers.source, words_of(example))
        targets = [IGNORE] * len(tokens)
        for i, tag in zip(first, _numbers(example, number), strict=True):
            targets[i] = tag
        yield Read(tokens), targets


def _chats(examples: Sequence[Example], tokenizers: Tokenizers, *_: object) -> Sides:
    for example in examples:
        assert isinstance(example, Chat)
        ids, answered = ids_and_answers(tokenizers.source, example)
        targets = (i if said else IGNORE for i, said in zip(ids, answered, strict=True))
        yield Read(ids[:-1]), list(targets)[1:]


_ENCODE = {
    "language": _chats,
    "translation": _translation,
    "classification": _classification,
    "multi_label": _every_output,
    "regression": _every_output,
    "tagging": _tagging,
}


def _numbers(example: Example, number: Mapping[str, int]) -> list[int]:
    for label in labels_of(example):
        if label not in number:
            raise InputError(f"unknown label {label!r}.{choices(label, number)}")
    return [number[label] for label in labels_of(example)]
