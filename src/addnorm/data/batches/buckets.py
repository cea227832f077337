"""Batches of texts of similar length, and the list of all kinds of batches."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import Field, PositiveInt

from addnorm.config import config
from addnorm.data.batches.batch import (
    Batch,
    Loader,
    Loaders,
    check_medium,
    cut_at,
    epoch_random,
    shuffled,
    stops_of,
)
from addnorm.data.batches.denoising import Denoising, DenoisingConfig
from addnorm.data.batches.frames import Frames, FramesConfig
from addnorm.data.batches.images import ExamplesConfig, Images
from addnorm.data.batches.masked import Masked, MaskedConfig
from addnorm.data.batches.series_batches import SeriesBatchesConfig
from addnorm.data.batches.sharded import sharded_loaders
from addnorm.data.batches.windows import Packed, PackedConfig, Windows, WindowsConfig
from addnorm.data.example import PROPERTIES, Medium
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import EncodedCorpus, Longer
from addnorm.data.ids.layout import Padding
from addnorm.data.shards.source import ShardedTexts
from addnorm.errors import InputError
from addnorm.nn.built import built
from addnorm.parts import Family, kind_of, members

__all__ = [
    "Batch",
    "BatchingConfig",
    "Buckets",
    "Denoising",
    "DenoisingConfig",
    "ExamplesConfig",
    "Frames",
    "FramesConfig",
    "Images",
    "Loader",
    "Loaders",
    "Masked",
    "MaskedConfig",
    "Packed",
    "PackedConfig",
    "SeriesBatchesConfig",
    "TokensConfig",
    "Windows",
    "WindowsConfig",
]


class Buckets(Loader[int]):
    """Batches of examples of similar length, each of at most `tokens` positions including padding.

    The width of a batch is its longest example, of a pair the longer side, rounded up to a multiple
    of `pad_to`. Every example is in exactly one batch of an epoch. Raises `InputError` for an
    example that is longer than a batch.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        examples: Sequence[Encoded],
        tokens: int,
        *,
        seed: int | None = None,
        pad_to: int = 1,
    ) -> None:
        self.corpus = corpus
        self.examples = examples
        self.tokens = tokens
        self.seed = seed
        self.pad_to = pad_to
        lengths = np.array(corpus.lengths(examples))
        self.widths = -(-lengths // pad_to) * pad_to
        if self.widths.max() > tokens:
            raise InputError(
                f"an example of {self.widths.max():,} tokens is longer than a batch of {tokens:,}: "
                'raise tokens or set max_len; for a language model, batching.kind = "windows" cuts '
                "texts"
            )

    def width(self, length: int) -> int:
        """Round a length up to the next multiple of `pad_to`."""
        return -(-length // self.pad_to) * self.pad_to

    def plan(self, epoch: int) -> list[list[int]]:
        """Return the examples of each batch; examples of equal width are regrouped every epoch."""
        rng, n = epoch_random(self.seed, epoch), len(self.widths)
        order = shuffled(rng, n) if rng else np.arange(n)
        rising = order[np.argsort(self.widths[order], kind="stable")]
        batches = cut_at(rising.tolist(), self._stops)
        if rng:
            rng.shuffle(batches)
        return batches

    def __len__(self) -> int:
        return len(self._stops)

    @cached_property
    def _stops(self) -> list[int]:
        """Where the batches of examples in order of their widths end."""
        return stops_of(np.sort(self.widths).tolist(), self.tokens)

    def build(self, items: Sequence[int]) -> Batch:
        """Return the batch in the form that the task's model takes."""
        examples = [self.examples[i] for i in items]
        layout = self.corpus.layout
        padding = Padding(self.corpus.bos_id, self.corpus.pad_id, self.width)
        inputs = layout.inputs(examples, padding)
        arguments, targets = layout.arranged(inputs, examples, padding)
        return Batch.of(arguments, targets, [example.index for example in examples])


@config
class TokensConfig:
    """For every task: examples of similar length, `tokens` positions to a batch with the padding.

    Examples longer than `max_len`, special tokens included, are left out or shortened, and
    reported; a language model takes each document as an example. `pad_to` rounds widths up.
    """

    kind: Literal["tokens"] = "tokens"
    tokens: PositiveInt = 4096
    """The maximum number of positions in a batch, padding included; of a pair the longer side
    counts.
    """
    pad_to: PositiveInt = 1
    """Round the width of a batch up to a multiple of this, for fewer shapes."""
    max_len: Annotated[int, Field(ge=2)] | None = None
    """The longest example in tokens, special ones included; by default any length."""
    longer: Longer = "leave_out"
    """The treatment of longer examples: they are left out, or shortened to `max_len`."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of a corpus of text.

        Raises `InputError` for another medium, and where an example is longer than a batch.
        """
        check_medium(corpus, "tokens", "text")
        if self.max_len is not None:
            corpus = corpus.within(self.max_len, self.longer)
        return Loaders(
            self.buckets(corpus, corpus.train, seed),
            self.buckets(corpus, corpus.valid) if corpus.valid else None,
            self.buckets(corpus, corpus.test) if corpus.test else None,
            corpus.reports,
        )

    def buckets(
        self, corpus: EncodedCorpus, examples: Sequence[Encoded], seed: int | None = None
    ) -> Buckets:
        """Build the batches of examples; their order is fixed without a seed."""
        return Buckets(corpus, examples, self.tokens, seed=seed, pad_to=self.pad_to)


@runtime_checkable
class BatchingPart(Protocol):
    """A configuration of a custom way to make batches.

    `build` gives a `Loader` for each split that is there. That of train takes the `seed`, and every
    epoch has the same number of batches.
    """

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders: ...


BatchingConfig = Annotated[
    TokensConfig
    | WindowsConfig
    | PackedConfig
    | MaskedConfig
    | DenoisingConfig
    | ExamplesConfig
    | FramesConfig
    | SeriesBatchesConfig
    | BatchingPart,
    Family("batching", BatchingPart),
]
"""Every way to make batches."""


def build_loaders(batching: BatchingConfig, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
    """The loaders of a corpus.

    Raises `InputError` if a custom part builds none, and for shards in other batches than rows.
    """
    if isinstance(corpus.train, ShardedTexts):
        return sharded_loaders(batching, corpus, seed)
    made = batching.build(corpus, seed)
    return built(
        batching, made, Loaders, "batching must give Loaders of addnorm.data.batches.buckets"
    )


def special_tokens_of(batching: BatchingConfig) -> tuple[str, ...]:
    """Return the tokens that replace hidden text in these batches; the tokenizer must have them."""
    hides = isinstance(batching, MaskedConfig | DenoisingConfig)
    return batching.special_tokens if hides else ()


def batching_of(medium: Medium) -> BatchingConfig:
    """Return the default kind of batches for any examples of a medium."""
    kinds = {kind_of(config): config for config in members(BatchingConfig)}
    return kinds[PROPERTIES[medium].batching]()


def medium_of_batches(batching: BatchingConfig) -> Medium | None:
    """Return the medium for which a kind of batches is; None for custom ones."""
    if not isinstance(batching, members(BatchingConfig)):
        return None
    kind = kind_of(batching)
    for medium, properties in PROPERTIES.items():
        if properties.batching == kind:
            return medium
    return "text"
