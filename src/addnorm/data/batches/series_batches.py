"""Batches of time series: windows to forecast from, or whole series with a class or numbers."""

from collections.abc import Sequence
from typing import Literal

from pydantic import PositiveInt

from addnorm.config import config
from addnorm.data.batches.batch import (
    Batch,
    Loader,
    Loaders,
    batch_of,
    check_medium,
    chunks,
    epoch_random,
    side_by_side,
)
from addnorm.data.ids.encoding import Encoded, EncodedCorpus


class SeriesBatches(Loader[int]):
    """Batches of `size` series, in a new order every epoch; series of unequal length are padded."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        examples: Sequence[Encoded],
        size: int,
        *,
        seed: int | None = None,
    ) -> None:
        self.corpus = corpus
        self.examples = examples
        self.size = size
        self.seed = seed

    def plan(self, epoch: int) -> list[Sequence[int]]:
        """Return the indices of the series in each batch."""
        order = list(range(len(self.examples)))
        if rng := epoch_random(self.seed, epoch):
            rng.shuffle(order)
        return chunks(order, self.size)

    def build(self, items: Sequence[int]) -> Batch:
        """Return the series with their targets."""
        examples = [self.examples[i] for i in items]
        signals = [example.signal for example in examples if example.signal is not None]
        return batch_of(self.corpus, examples, side_by_side(signals))


@config
class SeriesBatchesConfig:
    """For time series: `size` of them, or of their windows, to a batch."""

    kind: Literal["series"] = "series"
    size: PositiveInt = 128
    """Series, or windows of a series to forecast, in a batch."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of a corpus of series; raise `InputError` for other media."""
        check_medium(corpus, "series", "series")
        return Loaders.of(
            corpus,
            seed,
            lambda examples, seed: SeriesBatches(corpus, examples, self.size, seed=seed),
        )
