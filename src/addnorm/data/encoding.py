"""From a corpus to numbers: what a model of each task reads, and what it has to say."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Shaped, UInt8
from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from addnorm.data.examples import (
    Corpus,
    Example,
    Image,
    MultiLabelled,
    Report,
    Scored,
    Task,
    labels_of,
    source_text,
    target_text,
    words_of,
)
from addnorm.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from addnorm.errors import InputError, nearest

IGNORE = -100
"""The target where nothing is to be predicted."""

Longer = Literal["leave_out", "shorten"]
"""What to do with an example that is too long."""


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of what is read and that of what is written; often one object."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def train(cls, config: TokenizerConfig, corpus: Corpus) -> "Tokenizers":
        """Learn from the training examples."""
        if getattr(config, "joint", True) or corpus.task != "translation":
            both = train_tokenizer(config, [*corpus.source_texts(), *corpus.target_texts()])
            return cls(both, both)
        return cls(
            train_tokenizer(config, corpus.source_texts()),
            train_tokenizer(config, corpus.target_texts()),
        )

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, or `source.tokenizer.json` and `target.tokenizer.json`."""
        if self.source is self.target:
            self.source.save(folder / "tokenizer.json")
        else:
            self.source.save(folder / "source.tokenizer.json")
            self.target.save(folder / "target.tokenizer.json")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizers":
        """Read what `save` wrote; raise `InputError` where it is missing or damaged."""
        if (folder / "source.tokenizer.json").exists():
            source = Tokenizer.load(folder / "source.tokenizer.json")
            return cls(source, Tokenizer.load(folder / "target.tokenizer.json"))
        both = Tokenizer.load(folder / "tokenizer.json")
        return cls(both, both)


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example in ids; `index` is its place in its split of the corpus.

    | task           | `tokens`        | `targets`                                            |
    |----------------|-----------------|------------------------------------------------------|
    | language       | bos text        | text eos                                             |
    | translation    | source eos      | target eos; the decoder reads them shifted after bos |
    | classification | bos text eos    | the number of the class                              |
    | tagging        | bos words eos   | the number of the tag at each word's first piece     |

    An image has `pixels` and no tokens; its target is the number of its class. Where every output
    of the model has to say something of its own, `values` are the targets: numbers, or for each
    label whether the text has it.
    """

    index: int
    tokens: list[int]
    targets: list[int]
    pixels: UInt8[Tensor, "channels height width"] | None = None
    values: Shaped[Tensor, " outputs"] | None = None


@dataclass(frozen=True)
class EncodedCorpus:
    """Encoded examples of one task in three splits, with the reports on them.

    `bos_id` and `pad_id` mean nothing for images.
    """

    task: Task
    bos_id: int
    pad_id: int
    train: Sequence[Encoded]
    valid: Sequence[Encoded] = ()
    test: Sequence[Encoded] = ()
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])

    @property
    def splits(self) -> dict[str, Sequence[Encoded]]:
        """The three splits by name, empty ones too."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def reads(self) -> Literal["text", "images"]:
        """What the examples are made of."""
        return "text" if not self.train or self.train[0].pixels is None else "images"

    def length(self, example: Encoded) -> int:
        """How many positions of a model an example takes: the longer side of a pair."""
        if self.task == "translation":
            return max(len(example.tokens), len(example.targets))
        return len(example.tokens)

    def within(self, max_len: int, longer: Longer = "leave_out") -> "EncodedCorpus":
        """The same corpus with no example longer than `max_len`; the reports say what it cost.

        Raises `InputError` when that leaves nothing to train on.
        """
        parts = {split: self._within(split, max_len, longer) for split in self.splits}
        if not parts["train"][0]:
            raise InputError(f"every training example is longer than max_len={max_len}")
        return replace(
            self,
            **{split: examples for split, (examples, _) in parts.items()},
            reports={split: report for split, (_, report) in parts.items() if report.read},
        )

    def _within(self, split: str, max_len: int, longer: Longer) -> tuple[list[Encoded], Report]:
        examples = self.splits[split]
        n = len(examples)
        report = self.reports.get(split, Report(n, n))
        long = [f"{split} example {e.index + 1}" for e in examples if self.length(e) > max_len]
        if not long:
            return list(examples), report
        if longer == "shorten":
            cut = [shortened(self.task, example, max_len) for example in examples]
            return cut, replace(report, shortened=[*report.shortened, *long])
        left_out = {**report.left_out, f"longer than {max_len} tokens": long}
        kept = [example for example in examples if self.length(example) <= max_len]
        return kept, replace(report, used=report.used - len(long), left_out=left_out)


def shortened(task: Task, example: Encoded, max_len: int) -> Encoded:
    """The example cut to `max_len` positions; what is read keeps its eos, what is said does not."""
    tokens, targets = example.tokens, example.targets
    if task == "language":
        return replace(example, tokens=tokens[:max_len], targets=targets[:max_len])
    if task == "translation":
        return replace(example, tokens=_keep_last(tokens, max_len), targets=targets[:max_len])
    return replace(
        example,
        tokens=_keep_last(tokens, max_len),
        targets=_keep_last(targets, max_len) if task == "tagging" else targets,
    )


def _keep_last(ids: list[int], n: int) -> list[int]:
    return ids if len(ids) <= n else ids[: n - 1] + ids[-1:]


def encode(
    corpus: Corpus, tokenizers: Tokenizers | None, labels: Sequence[str] | None = None
) -> EncodedCorpus:
    """Encode every example; `labels` numbers the classes or tags, by default those of the corpus.

    Images alone have no tokenizers. Raises `InputError` for a label that is not among them.
    """
    number = {label: n for n, label in enumerate(corpus.labels if labels is None else labels)}
    images = isinstance(corpus.train[0], Image)
    if tokenizers is None and not images:
        raise InputError("the data are texts, and there is no tokenizer: give [tokenizer]")
    if tokenizers is not None and images:
        raise InputError("the data are images, which no tokenizer reads: leave [tokenizer] out")
    if tokenizers is None:
        return _images(corpus, number)
    splits = {
        split: _ENCODE[corpus.task](examples, tokenizers, number)
        for split, examples in corpus.splits.items()
    }
    return EncodedCorpus(
        task=corpus.task,
        bos_id=tokenizers.target.bos_id,
        pad_id=tokenizers.target.pad_id,
        **{
            split: [
                Encoded(i, *sides, values=_values(corpus.splits[split][i], number))
                for i, sides in enumerate(pairs)
            ]
            for split, pairs in splits.items()
        },
        reports=corpus.reports,
    )


def _images(corpus: Corpus, number: Mapping[str, int]) -> EncodedCorpus:
    splits = {
        split: [
            Encoded(i, [], _numbers(example, number), example.pixels)
            for i, example in enumerate(examples)
            if isinstance(example, Image)
        ]
        for split, examples in corpus.splits.items()
    }
    return EncodedCorpus("classification", bos_id=0, pad_id=0, **splits, reports=corpus.reports)


def as_read(task: Task, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts, with the special tokens with which a model of the task reads them.

    A tokenizer from elsewhere says itself what these are, but for the end of a text to continue.
    """
    before, after = _around(task, tokenizer)
    found = tokenizer.encode_batch(texts)
    for ids in found:  # in place: there may be millions
        ids[:0] = before
        ids += after
    return found


def pairs_as_read(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], list[int]]]:
    """The ids of two texts that are read together, and which of them each id belongs to.

    Devlin et al. 2019, §3: sentence types 0 and 1, where the tokenizer tells them apart.
    """
    layout = _pair_layout(tokenizer)
    sides = (tokenizer.encode_batch([pair[i] for pair in pairs]) for i in range(2))
    return [layout.around(*both) for both in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _PairLayout:
    """The ids before, between and after two texts, and the type of each of the five parts."""

    before: Sequence[int]
    between: Sequence[int]
    after: Sequence[int]
    types: Sequence[int]

    def around(self, one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
        parts = (self.before, one, self.between, other, self.after)
        typed = ([kind] * len(part) for kind, part in zip(self.types, parts, strict=True))
        return [*chain(*parts)], [*chain(*typed)]


def _pair_layout(tokenizer: Tokenizer) -> _PairLayout:
    """As the file of a tokenizer from elsewhere says; with one of ours, `bos A eos B eos`."""
    if tokenizer.before is None:
        between = tokenizer.eos_ids[:1]
        return _PairLayout((tokenizer.bos_id,), between, between, (0, 0, 0, 1, 1))
    word = WordTokenizer(WordLevel({"a": 0}, "a"))
    found = tokenizer.inner.post_process(word.encode("a"), word.encode("a"))
    ids, types = found.ids, found.type_ids
    one, other = (i for i, special in enumerate(found.special_tokens_mask) if not special)
    places = (0, one, min(one + 1, other), other, len(ids) - 1)
    return _PairLayout(
        ids[:one], ids[one + 1 : other], ids[other + 1 :], [types[i] for i in places]
    )


def words_as_read(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """The ids of a sentence to tag, and the index among them of each word's first piece."""
    before, after = _around("tagging", tokenizer)
    ids, first = tokenizer.encode_words(words)
    return [*before, *ids, *after], [i + len(before) for i in first]


def _around(task: Task, tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    before, after = tokenizer.before, tokenizer.after
    if before is None:
        before = () if task == "translation" else (tokenizer.bos_id,)
    if after is None:
        after = tokenizer.eos_ids[:1]
    return before, () if task == "language" else after


Sides = Iterator[tuple[list[int], list[int]]]
"""The tokens and the targets of each example."""


def _language(examples: Sequence[Example], tokenizers: Tokenizers, _: Mapping[str, int]) -> Sides:
    texts = [source_text(example) for example in examples]
    tokenizer = tokenizers.source
    if tokenizer.eos_id is None:
        raise InputError("the tokenizer has no end token, so no text to learn from would end")
    # GPT-2 reads a prompt as it is, but learnt that a text begins after the end of another.
    start = () if _around("language", tokenizer)[0] else (tokenizer.bos_id,)
    for tokens in as_read("language", tokenizer, texts):
        tokens[:0] = start
        targets = tokens[1:]
        targets.append(tokenizer.eos_id)
        yield tokens, targets


def _translation(
    examples: Sequence[Example], tokenizers: Tokenizers, _: Mapping[str, int]
) -> Sides:
    sources = [source_text(example) for example in examples]
    targets = [target_text(example) for example in examples]
    return zip(
        as_read("translation", tokenizers.source, sources),
        as_read("translation", tokenizers.target, targets),
        strict=True,
    )


def _classification(
    examples: Sequence[Example], tokenizers: Tokenizers, number: Mapping[str, int]
) -> Sides:
    texts = [source_text(example) for example in examples]
    read = as_read("classification", tokenizers.source, texts)
    for example, tokens in zip(examples, read, strict=True):
        yield tokens, _numbers(example, number)


def _every_output(
    examples: Sequence[Example], tokenizers: Tokenizers, _: Mapping[str, int]
) -> Sides:
    texts = [source_text(example) for example in examples]
    return ((tokens, []) for tokens in as_read("classification", tokenizers.source, texts))


def _values(example: Example, number: Mapping[str, int]) -> Shaped[Tensor, " outputs"] | None:
    """What every output has to say of a text; None for tasks of other targets."""
    match example:
        case Scored(_, values):
            return torch.tensor(values)
        case MultiLabelled():
            has = torch.zeros(len(number), dtype=torch.bool)
            has[_numbers(example, number)] = True
            return has
        case _:
            return None


def _tagging(
    examples: Sequence[Example], tokenizers: Tokenizers, number: Mapping[str, int]
) -> Sides:
    for example in examples:
        tokens, first = words_as_read(tokenizers.source, words_of(example))
        targets = [IGNORE] * len(tokens)
        for i, tag in zip(first, _numbers(example, number), strict=True):
            targets[i] = tag
        yield tokens, targets


_ENCODE = {
    "language": _language,
    "translation": _translation,
    "classification": _classification,
    "multi_label": _every_output,
    "regression": _every_output,
    "tagging": _tagging,
}


def _numbers(example: Example, number: Mapping[str, int]) -> list[int]:
    for label in labels_of(example):
        if label not in number:
            raise InputError(
                f"unknown label {label!r}: {', '.join(number)}.{nearest(label, number)}"
            )
    return [number[label] for label in labels_of(example)]
