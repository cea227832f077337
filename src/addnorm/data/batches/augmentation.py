"""Augmentation: random changes of training images, made on a whole batch at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from random import Random
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import config
from addnorm.errors import InputError

Images = Float[Tensor, "batch channels height width"]
"""Images from 0, black, to 255, white."""

Share = Annotated[float, Field(gt=0.0, le=1.0)]
"""A number in (0, 1]."""


@dataclass(frozen=True)
class Examples:
    """Images with a probability for each class, which is 0 or 1 until images are mixed."""

    images: Images
    classes: Float[Tensor, "batch classes"]


class Augmentation(ABC):
    """A random change of images, with a random generator for each image.

    The change of an image depends only on its own generator, and where images are mixed on its
    neighbour in the batch.
    """

    @abstractmethod
    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        """Change each image by its own generator."""


@config
class CropConfig(Augmentation):
    """A crop of the image's size, anywhere in the image with a frame around it.

    He et al. 2016, §4.2: a frame of 4 black pixels. With one of black it is `shift`.
    """

    kind: Literal["crop"] = "crop"
    padding: PositiveInt = 4
    """The width of the frame, in pixels; mirrored, it is narrower than the image."""
    frame: Literal["black", "reflect"] = "black"
    """The content of the frame: black, or the image mirrored at its edges."""

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        height, width = examples.images.shape[-2:]
        if self.frame == "reflect" and self.padding >= min(height, width):
            raise InputError(
                f"crop: padding = {self.padding} cannot be mirrored from images of "
                f"{height} × {width}: at most {min(height, width) - 1}"
            )
        mode = "constant" if self.frame == "black" else "reflect"
        wide = F.pad(examples.images, (self.padding,) * 4, mode=mode)
        reach = 2 * self.padding
        places = [(rng.randint(0, reach), rng.randint(0, reach)) for rng in rngs]
        rows = [
            image[:, top : top + height, left : left + width]
            for image, (top, left) in zip(wide, places, strict=True)
        ]
        return replace(examples, images=torch.stack(rows))


@config
class FlipConfig(Augmentation):
    """Left and right change places in some of the images."""

    kind: Literal["flip"] = "flip"
    probability: Share = 0.5
    """The share of images that are flipped."""

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        flipped = chosen(self.probability, rngs)[:, None, None, None]
        images = torch.where(flipped, examples.images.flip(-1), examples.images)
        return replace(examples, images=images)


@config
class ErasingConfig(Augmentation):
    """A rectangle anywhere in some of the images is filled with random pixels.

    Zhong et al. 2020, alg. 1: its share of the image and its height by its width are drawn, the
    latter evenly on a logarithmic scale, until it fits; where ten draws do not, nothing is erased.
    """

    kind: Literal["erasing"] = "erasing"
    probability: Share = 0.5
    """The share of images that lose a rectangle."""
    area: tuple[Share, Share] = (0.02, 0.4)
    """The least and the largest share of the image that is erased."""
    aspect: PositiveFloat = 0.3
    """The smallest height by width of the rectangle; the largest is its inverse."""

    def __post_init__(self) -> None:
        if self.area[0] > self.area[1]:
            least, most = self.area
            raise ValueError(f"area = ({least}, {most}): the least first, ({most}, {least})")

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        images = examples.images.clone()
        for image, rng in zip(images, rngs, strict=True):
            if rng.random() < self.probability:
                self.erase(image, rng)
        return replace(examples, images=images)

    def erase(self, image: Float[Tensor, "channels height width"], rng: Random) -> None:
        """Fill a rectangle of the image."""
        channels, height, width = image.shape
        steepest = abs(log(self.aspect))
        for _ in range(10):
            area = rng.uniform(*self.area) * height * width
            aspect = exp(rng.uniform(-steepest, steepest))
            rows, columns = round(sqrt(area * aspect)), round(sqrt(area / aspect))
            if 0 < rows <= height and 0 < columns <= width:
                top, left = rng.randint(0, height - rows), rng.randint(0, width - columns)
                noise = bytearray(rng.randbytes(channels * rows * columns))
                filled = torch.frombuffer(noise, dtype=torch.uint8).view(channels, rows, columns)
                image[:, top : top + rows, left : left + columns] = filled
                return


def chosen(probability: float, rngs: Sequence[Random]) -> Bool[Tensor, " batch"]:
    """Draw which images to change."""
    return torch.tensor([rng.random() < probability for rng in rngs])


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

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        share = shares(self.alpha, self.probability, rngs)
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

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        height, width = examples.images.shape[-2:]
        side = (1 - shares(self.alpha, self.probability, rngs)).sqrt()
        rows = spans(height, side, rngs)[:, None, :, None]
        columns = spans(width, side, rngs)[:, None, None, :]
        inside = rows & columns
        images = torch.where(inside, examples.images.roll(1, 0), examples.images)
        share = 1 - inside.float().mean((1, 2, 3))
        return Examples(images, mixed_classes(examples.classes, share))


def shares(alpha: float, probability: float, rngs: Sequence[Random]) -> Float[Tensor, " batch"]:
    """Draw `λ` for each image from Beta(α, α); 1 for images that stay unchanged."""
    drawn = [rng.betavariate(alpha, alpha) if rng.random() < probability else 1.0 for rng in rngs]
    return torch.tensor(drawn)


def spans(
    size: int, side: Float[Tensor, " batch"], rngs: Sequence[Random]
) -> Bool[Tensor, "batch size"]:
    """Mark a span of this share of `size` around a random middle, cut off at the ends."""
    middle = torch.tensor([rng.randrange(size) for rng in rngs])
    half = (side * size).long() // 2
    start, stop = (middle - half).clamp(min=0), (middle + half).clamp(max=size)
    places = torch.arange(size)
    return (places >= start[:, None]) & (places < stop[:, None])


def mixed_classes(
    classes: Float[Tensor, "batch classes"], share: Float[Tensor, " batch"]
) -> Float[Tensor, "batch classes"]:
    """Mix the classes of each image with those of the image before it, by its share."""
    return share[:, None] * classes + (1 - share[:, None]) * classes.roll(1, 0)
