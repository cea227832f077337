"""Batches of sound clips of similar length, with random masks over frames and mel features."""

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.batches.batch import (
    Batch,
    Loader,
    Loaders,
    batch_of,
    by_width,
    check_medium,
    epoch_random,
    side_by_side,
)
from addnorm.data.ids.encoding import Encoded, EncodedCorpus
from addnorm.errors import InputError

Masked = tuple[int, int]
"""The number of an example, and the seed of its masks."""


@config
class SpecAugmentConfig:
    """SpecAugment without time warping: a training clip loses random frames and mel features.

    Park et al. 2019, §2: each mask begins anywhere and is of any width up to the most, and sets to
    the clip's mean. A mask over time covers `time_share` of the clip at most.
    """

    time_masks: NonNegativeInt = 2
    """Masks over time in a clip."""
    time_width: NonNegativeInt = 20
    """The most frames that one covers."""
    time_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """The largest share of a clip that one covers."""
    mel_masks: NonNegativeInt = 2
    """Masks over mel features in a clip."""
    mel_width: NonNegativeInt = 10
    """The most mel features that one covers."""

    def masked(
        self, frames: Float[Tensor, "n_mels frames"], seed: int
    ) -> Float[Tensor, "n_mels frames"]:
        """Return the clip with masks drawn by the seed."""
        rng, (n_mels, n) = Random(seed), frames.shape
        frames, mean = frames.clone(), float(frames.mean())
        for _ in range(self.time_masks):
            start, stop = _span(rng, n, min(self.time_width, int(self.time_share * n)))
            frames[:, start:stop] = mean
        for _ in range(self.mel_masks):
            start, stop = _span(rng, n_mels, min(self.mel_width, n_mels))
            frames[start:stop] = mean
        return frames


def _span(rng: Random, n: int, most: int) -> tuple[int, int]:
    width = rng.randint(0, most)
    start = rng.randint(0, n - width)
    return start, start + width


class Frames(Loader[Masked]):
    """Batches of clips of similar length, each of at most `frames` frames including padding.

    Every clip is in exactly one batch of an epoch. Raises `InputError` for a clip that is longer
    than a batch.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        examples: Sequence[Encoded],
        frames: int,
        *,
        seed: int | None = None,
        augment: SpecAugmentConfig | None = None,
    ) -> None:
        self.corpus = corpus
        self.examples = examples
        self.frames = frames
        self.seed = seed
        self.augment = augment
        self.lengths = corpus.lengths(examples)
        if max(self.lengths) > frames:
            raise InputError(
                f"a clip of {max(self.lengths):,} frames, a hundredth of a second each, is longer "
                f"than a batch: raise train.batching.frames = {frames:,}"
            )

    def plan(self, epoch: int) -> list[list[Masked]]:
        """Return the clips of each batch with the seeds of their masks, new every epoch."""
        rng = epoch_random(self.seed, epoch)
        order = [(i, rng.getrandbits(32) if rng else 0) for i in range(len(self.examples))]
        if rng:
            rng.shuffle(order)
        batches = by_width(order, lambda item: self.lengths[item[0]], self.frames)
        if rng:
            rng.shuffle(batches)
        return batches

    def build(self, items: Sequence[Masked]) -> Batch:
        """Stack the clips, padded with zeros on the right, with their classes or texts."""
        examples = [self.examples[i] for i, _ in items]
        clips = [example.signal for example in examples if example.signal is not None]
        if self.augment is not None and self.seed is not None:
            masked = zip(clips, items, strict=True)
            clips = [self.augment.masked(clip, seed) for clip, (_, seed) in masked]
        return batch_of(self.corpus, examples, side_by_side(clips))


@config
class FramesConfig:
    """For sound: clips of similar length, `frames` frames to a batch with the padding.

    A frame is a hundredth of a second. Where a clip's text has more tokens than the clip has
    frames, its tokens count.
    """

    kind: Literal["frames"] = "frames"
    frames: PositiveInt = 12_000
    """The maximum number of frames in a batch, padding included."""
    augment: SpecAugmentConfig | None = None
    """Random masks over training clips; by default none."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of a corpus of sound; raise `InputError` for other media."""
        check_medium(corpus, "frames", "audio")

        def frames(examples: Sequence[Encoded], seed: int | None) -> Frames:
            return Frames(corpus, examples, self.frames, seed=seed, augment=self.augment)

        return Loaders.of(corpus, seed, frames)
