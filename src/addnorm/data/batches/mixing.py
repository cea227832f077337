"""Mixup and CutMix: training images, and their classes, mixed with those of their neighbours."""

from collections.abc import Sequence
from random import Random
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import PositiveFloat
from torch import Tensor

from addnorm.config import config
from addnorm.data.batches.augmentation import Augmentation, Examples, Share


@config
class MixupConfig(Augmentation):
    """`x = λ x_i + (1 - λ) x_j`, and the classes alike, with `λ` of Beta(α, α).

    Zhang et al. 2018, eq. 1. `x_j` is the image before it in the batch, whose order is random; the
    paper's own code draws one `λ` for the batch, here each image has its own.
    """

    kind: Literal["mixup"] = "mixup"
    alpha: PositiveFloat = 0.2
    """The α of λ: small ones leave most images nearly whole, 1 draws every λ alike."""
    probability: Share = 1.0
    """The share of images that are mixed."""

    def __call__(self, examples: Examples, dice: Sequence[Random]) -> Examples:
        share = shares(self.alpha, self.probability, dice)
        own = share[:, None, None, None]
        images = own * examples.images + (1 - own) * examples.images.roll(1, 0)
        return Examples(images, mixed_classes(examples.classes, share))


@config
class CutMixConfig(Augmentation):
    """A rectangle of another image, `1 - λ` of its area, with `λ` of Beta(α, α).

    Yun et al. 2019, §3.1: its sides are `√(1 - λ)` of the image's, its middle is anywhere, what
    lies outside is cut off, and the classes are mixed by the area that is left. The other image is
    the one before it in the batch, whose order is random. Each image has its own rectangle, where
    the paper's own code draws one for the batch.
    """

    kind: Literal["cutmix"] = "cutmix"
    alpha: PositiveFloat = 1.0
    """The α of λ: 1 draws every λ alike, small ones make the rectangle nearly nothing or all."""
    probability: Share = 1.0
    """The share of images that are mixed."""

    def __call__(self, examples: Examples, dice: Sequence[Random]) -> Examples:
        height, width = examples.images.shape[-2:]
        side = (1 - shares(self.alpha, self.probability, dice)).sqrt()
        rows = spans(height, side, dice)[:, None, :, None]
        columns = spans(width, side, dice)[:, None, None, :]
        inside = rows & columns
        images = torch.where(inside, examples.images.roll(1, 0), examples.images)
        share = 1 - inside.float().mean((1, 2, 3))
        return Examples(images, mixed_classes(examples.classes, share))


def shares(alpha: float, probability: float, dice: Sequence[Random]) -> Float[Tensor, " batch"]:
    """`λ` of each image, from Beta(α, α); 1 for those that are left as they are."""
    drawn = [rng.betavariate(alpha, alpha) if rng.random() < probability else 1.0 for rng in dice]
    return torch.tensor(drawn)


def spans(
    size: int, side: Float[Tensor, " batch"], dice: Sequence[Random]
) -> Bool[Tensor, "batch size"]:
    """The places in a span of this share of `size`, its middle anywhere, cut off at the ends."""
    middle = torch.tensor([rng.randrange(size) for rng in dice])
    half = (side * size).long() // 2
    start, stop = (middle - half).clamp(min=0), (middle + half).clamp(max=size)
    places = torch.arange(size)
    return (places >= start[:, None]) & (places < stop[:, None])


def mixed_classes(
    classes: Float[Tensor, "batch classes"], share: Float[Tensor, " batch"]
) -> Float[Tensor, "batch classes"]:
    """The classes of each image in its share, and those of the one before it in the rest."""
    return share[:, None] * classes + (1 - share[:, None]) * classes.roll(1, 0)
