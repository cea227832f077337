"""The names of WNUT-17 as questions about their sentences: "Which person?", "Which location?" …"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from addnorm.data import Corpus, Example
from addnorm.data.examples import Tagged
from addnorm.data.readers.conll import ConllConfig
from addnorm.tasks.span_extraction import QuestionAnswer


@dataclass(frozen=True)
class QuestionsConfig:
    """Files in CoNLL format; `root` is the folder that they are relative to."""

    train: tuple[Path, ...]
    valid: Path | None = None
    test: Path | None = None
    root: Path = Path()

    def load(self) -> Corpus:
        """A question for each type of names in a sentence; all names of the type are answers."""
        tagged = ConllConfig(train=self.train, valid=self.valid, test=self.test, root=self.root)
        corpus = tagged.load()
        splits = (corpus.train, corpus.valid, corpus.test)
        return Corpus(*([*_questions(examples)] for examples in splits))


def _questions(examples: Sequence[Example]) -> Iterator[QuestionAnswer]:
    for example in examples:
        assert isinstance(example, Tagged)
        text, names = " ".join(example.tokens), sorted(_names(example))
        for kind, group in groupby(names, lambda name: name[0]):
            places = [(start, stop) for _, start, stop in group]
            answers = tuple(text[start:stop] for start, stop in places)
            starts = tuple(start for start, _ in places)
            yield QuestionAnswer(f"Which {kind}?", text, answers, starts)


def _names(example: Tagged) -> Iterator[tuple[str, int, int]]:
    """The type of each name, and where it starts and stops in the sentence."""
    name, place = None, 0
    for word, tag in zip(example.tokens, example.tags, strict=True):
        if name and not tag.startswith("I-"):
            yield name
            name = None
        if tag != "O":
            start = name[1] if name else place
            name = tag[2:], start, place + len(word)
        place += len(word) + 1
    if name:
        yield name
