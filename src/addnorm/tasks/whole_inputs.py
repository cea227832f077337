"""Tasks of a whole input: a class, labels or numbers, also for a pair of texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from addnorm.data import Corpus
from addnorm.data.example import has_signals
from addnorm.data.examples import Scored
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import EncodedCorpus, encoded_inputs
from addnorm.data.ids.framing import framed_rows
from addnorm.data.ids.layout import Apart
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.parts import is_ours
from addnorm.tasks.task import Task, undefined

NOTHING = Encoded(0, [], [])
"""An input without tokens, for targets that are encoded separately from the texts."""


@dataclass(frozen=True)
class OfWholeInputs(Task):
    """A task with one prediction for a whole text, image, clip or series, or for two texts.

    A bi-encoder (Reimers & Gurevych 2019) encodes two texts separately, or `apart`.
    """

    labels: ClassVar[bool] = True

    apart: bool = False

    def lacks(self) -> list[str]:
        """The missing methods, as for any task, and `with_target()` if `encode()` needs it."""
        kind, here = type(self), OfWholeInputs
        is_lacking = kind.encode is here.encode and kind.with_target is here.with_target
        return [*super().lacks(), *(["with_target()"] if is_lacking else [])]

    def for_model(self, model: ModelConfig) -> Task:
        """Return the task; with a similarity head, it encodes two texts separately (`apart`)."""
        return replace(self, apart=isinstance(model.head, SimilarityHeadConfig))

    def check_data(self, model: ModelConfig, corpus: Corpus, labels: Sequence[str]) -> None:
        """Raise `InputError` for a bi-encoder without text pairs, or with unreachable numbers."""
        if isinstance(model.head, SimilarityHeadConfig):
            check_pairs(model.head, corpus)

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode whole inputs, with the special tokens around texts."""
        inputs = encoded_inputs(examples, tokenizers, apart=self.apart)
        for example, read in zip(examples, inputs, strict=True):
            yield self.with_target(read, example, numbers)

    def encode_split(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Sequence[Encoded]:
        """Encode single texts all at once, with the same result as `encode`."""
        ours = is_ours(type(self)) and type(self).encode is OfWholeInputs.encode
        if not (ours and examples) or has_signals(examples[0].medium) or examples[0].second_text():
            return super().encode_split(examples, tokenizers, numbers)
        assert tokenizers is not None
        texts = [example.source_text() for example in examples]
        targets = Compact.of(map(self.with_target, repeat(NOTHING), examples, repeat(numbers)))
        tokens = framed_rows("classification", tokenizers.source, texts)
        return Compact(tokens, targets.targets, np.arange(len(texts)), targets.values)

    def with_target(self, read: Encoded, example: Any, numbers: Mapping[str, int]) -> Encoded:
        """Return an input with its target."""
        raise undefined(self, ["with_target()"])

    def encode_corpus(
        self,
        corpus: Corpus,
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
        advance: Advance,
    ) -> EncodedCorpus:
        """Encode as `Task.encode_corpus` does; separate texts are laid out by `Apart`."""
        encoded = super().encode_corpus(corpus, tokenizers, numbers, advance)
        return replace(encoded, layout=Apart()) if self.apart else encoded


def check_pairs(head: SimilarityHeadConfig, corpus: Corpus) -> None:
    """Raise `InputError` for data without a second text, or with unreachable numbers."""
    if not corpus.train[0].second_text():
        raise InputError(
            "model.head.kind = 'similarity' compares two texts, and the data have one: name the "
            "column of the second in data.text_pair"
        )
    values = [example.values for example in corpus.train if isinstance(example, Scored)]
    if not values or head.problem != "regression":
        return
    if len(values[0]) > 1:
        raise InputError(
            f"a cosine is one number, and the data have {len(values[0])} of each pair: name one "
            "column in data.values"
        )
    (least,), (most,) = min(values), max(values)
    low, high = sorted((2 * head.range[0] - head.range[1], head.range[1]))
    if least < low or most > high:
        raise InputError(
            f"the data have numbers from {least:g} to {most:g}, and with model.head.range = "
            f"{[*head.range]} cosines stand for {low:g} to {high:g}: give range = "
            f"[{least:g}, {most:g}]"
        )
