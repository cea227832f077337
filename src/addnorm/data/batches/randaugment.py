"""RandAugment: for each image, a few of fourteen changes of colour and shape.

Why not a library's: torchvision and kornia draw from torch's global generator, torchvision one
change for the whole batch, so a run could not be resumed exactly; and both would be large for
fourteen formulas. Here a batch is changed in one pass for each kind of change, and all changes that
move pixels are one affine map of the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import cos, radians, sin
from random import Random
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import config
from addnorm.data.batches.augmentation import Augmentation, Examples, Images

Strength = Float[Tensor, "batch 1 1 1"]
"""The strength for each image, from 0 to 1; where a change has two directions, from -1 to 1."""

Matrix = tuple[float, float, float, float, float, float]
"""The two rows of an affine map from places in the new image to places in the old one."""


def autocontrast(images: Images, _: Strength) -> Images:
    """Stretch each channel until its darkest pixel is black and its lightest is white."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    stretched = (images - low) * (255 / (high - low).clamp(min=1))
    return torch.where(high > low, stretched, images)


def equalized(images: Images, _: Strength) -> Images:
    """Spread the values of each channel so that all are about equally frequent."""
    values = images.round().clamp(0, 255).long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256).scatter_add_(2, values, torch.ones(values.shape))
    below = counts.cumsum(2) - counts  # pixels that are darker
    last = counts.gather(2, values.amax(2, keepdim=True))  # those of the lightest value
    step = (values.shape[2] - last).clamp(min=1)
    table = (below * 255 / step).clamp(max=255).round()
    spread = table.gather(2, values).view_as(images)
    return torch.where((last == values.shape[2])[..., None], images, spread)


def solarized(images: Images, strength: Strength) -> Images:
    """Invert pixels from a threshold on: 256 at no strength, 0 at full strength."""
    return torch.where(images >= 256 * (1 - strength), 255 - images, images)


def posterized(images: Images, strength: Strength) -> Images:
    """Round values down to steps: of 1 at no strength, of 16 at full strength (4 bits)."""
    step = 2 ** (4 * strength).round()
    return (images / step).floor() * step


def colored(images: Images, strength: Strength) -> Images:
    """Make colours stronger or weaker; a grey image stays the same."""
    return blended(grey(images), images, strength)


def contrasted(images: Images, strength: Strength) -> Images:
    """Move pixels away from the image's mean grey, or towards it."""
    return blended(grey(images).mean((1, 2, 3), keepdim=True), images, strength)


def brightened(images: Images, strength: Strength) -> Images:
    """Move pixels away from black, or towards it."""
    return blended(torch.zeros(()), images, strength)


def sharpened(images: Images, strength: Strength) -> Images:
    """Move pixels away from the smoothed image, or towards it; those at the edge stay."""
    kernel = torch.ones(3, 3)
    kernel[1, 1] = 5
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 3, 3)
    smooth = images.clone()
    if min(images.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, kernel, groups=images.shape[1])
    return blended(smooth, images, strength)


def blended(other: Tensor, images: Images, strength: Strength) -> Images:
    """`other + (1 + 0.9 s)(x - other)`, within black and white."""
    return (other + (1 + 0.9 * strength) * (images - other)).clamp(0, 255)


def grey(images: Images) -> Float[Tensor, "batch 1 height width"]:
    """The brightness of three colours, as ITU-R 601 weighs them; the mean of other channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


COLOURS: Mapping[str, Callable[[Images, Strength], Images]] = {
    "autocontrast": autocontrast,
    "equalize": equalized,
    "solarize": solarized,
    "posterize": posterized,
    "color": colored,
    "contrast": contrasted,
    "brightness": brightened,
    "sharpness": sharpened,
}
"""Changes of colour, by the names of the paper."""

ONE_SIDED = frozenset({"solarize", "posterize"})
"""Changes whose strength has no sign."""


def _rotation(s: float) -> Matrix:
    angle = radians(30 * s)
    return cos(angle), -sin(angle), 0.0, sin(angle), cos(angle), 0.0


SHAPES: Mapping[str, Callable[[float], Matrix]] = {
    "rotate": _rotation,
    "shear_x": lambda s: (1.0, 0.3 * s, 0.0, 0.0, 1.0, 0.0),
    "shear_y": lambda s: (1.0, 0.0, 0.0, 0.3 * s, 1.0, 0.0),
    # In coordinates from -1 to 1 the image is 2 wide: 0.9 are 45 % of it.
    "translate_x": lambda s: (1.0, 0.0, 0.9 * s, 0.0, 1.0, 0.0),
    "translate_y": lambda s: (1.0, 0.0, 0.0, 0.0, 1.0, 0.9 * s),
}
"""Changes of shape, by the names of the paper, with the maps of their strengths."""

CHANGES = ("identity", *SHAPES, *COLOURS)
"""The fourteen changes of Cubuk et al. 2020, fig. 2."""


@config
class RandAugmentConfig(Augmentation):
    """`n_ops` changes of each image, one after the other, each drawn evenly from fourteen.

    RandAugment (Cubuk et al. 2020, §3): nothing, rotation, shear and translation along each axis,
    and eight of colour, in the ranges of Cubuk et al. 2019, table 6; the sign is drawn. What comes
    in from outside is black, and places between pixels take the nearest.
    """

    kind: Literal["randaugment"] = "randaugment"
    n_ops: PositiveInt = 2
    """N, the changes of an image."""
    magnitude: Annotated[float, Field(ge=0.0, le=10.0)] = 9.0
    """M, the strength of every change, from 0 to 10."""

    def __call__(self, examples: Examples, rngs: Sequence[Random]) -> Examples:
        images = examples.images
        for _ in range(self.n_ops):
            drawn = [(rng.choice(CHANGES), rng.choice((-1, 1))) for rng in rngs]
            images = changed(images, drawn, self.magnitude / 10)
        return replace(examples, images=images)


def changed(images: Images, drawn: Sequence[tuple[str, int]], strength: float) -> Images:
    """Apply to each image the change that was drawn for it, in the drawn direction."""
    images, names = images.clone(), [name for name, _ in drawn]
    if moved := [i for i, name in enumerate(names) if name in SHAPES]:
        maps = [SHAPES[names[i]](strength * drawn[i][1]) for i in moved]
        images[moved] = affine(images[moved], torch.tensor(maps).view(-1, 2, 3))
    for name in sorted(COLOURS.keys() & set(names)):
        rows = [i for i, drawn_name in enumerate(names) if drawn_name == name]
        signs = [1 if name in ONE_SIDED else drawn[i][1] for i in rows]
        strengths = strength * torch.tensor(signs, dtype=images.dtype).view(-1, 1, 1, 1)
        images[rows] = COLOURS[name](images[rows], strengths)
    return images


def affine(images: Images, maps: Float[Tensor, "batch 2 3"]) -> Images:
    """Take the pixel at `x` from `A x`, in coordinates from -1 to 1; black outside the image.

    `A` is meant for a square image; other images get the same angles.
    """
    height, width = images.shape[-2:]
    sides = torch.tensor([[1, height / width, 1], [width / height, 1, 1]])
    grid = F.affine_grid((sides * maps).to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)
