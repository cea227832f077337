"""RandAugment: each change against Pillow's or a plain formula, and how they are drawn."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image as pillow
from PIL import ImageEnhance, ImageFilter, ImageOps
from tests.data.batches.test_augmentation import dice, examples
from torch import Tensor

from addnorm.data.batches.randaugment import (
    CHANGES,
    COLOURS,
    ONE_SIDED,
    SHAPES,
    RandAugmentConfig,
    affine,
    changed,
)


def pictures(n: int = 6, size: tuple[int, int] = (24, 32)) -> Tensor:
    """Smooth colours that do not fill the whole range."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(30, 200, (4, 5, 3), np.uint8) for _ in range(n)]
    wide = [np.asarray(pillow.fromarray(row).resize(size[::-1], 2)) for row in rows]
    return torch.from_numpy(np.stack(wide)).movedim(-1, 1).float()


def as_pillow(image: Tensor) -> pillow.Image:
    return pillow.fromarray(image.to(torch.uint8).movedim(0, -1).numpy())


def from_pillow(picture: pillow.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).movedim(-1, 0).float()


STRENGTH = 0.5
THEIRS = {
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "solarize": lambda one: ImageOps.solarize(one, 128),
    "posterize": lambda one: ImageOps.posterize(one, 6),
    "color": lambda one: ImageEnhance.Color(one).enhance(1.45),
    "contrast": lambda one: ImageEnhance.Contrast(one).enhance(1.45),
    "brightness": lambda one: ImageEnhance.Brightness(one).enhance(1.45),
    "sharpness": lambda one: ImageEnhance.Sharpness(one).enhance(1.45),
}


@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_those_of_pillow(name: str) -> None:
    images = pictures(2, (240, 320))  # Pillow spreads values in whole steps of pixels
    found = changed(images, [(name, 1)] * len(images), STRENGTH)
    expected = torch.stack([from_pillow(THEIRS[name](as_pillow(one))) for one in images])  # type: ignore[operator]
    apart = (found - expected).abs()
    assert float(apart.max()) <= (6 if name == "equalize" else 2)
    assert float(apart.mean()) < (2 if name == "equalize" else 1)


def test_the_smoothed_image_is_that_of_pillow() -> None:
    images = pictures(1)
    found = changed(images, [("sharpness", -1)], 1.0)[0]
    smooth = from_pillow(as_pillow(images[0]).filter(ImageFilter.SMOOTH))
    expected = smooth + 0.1 * (images[0] - smooth)
    assert (found - expected).abs().max() < 1.5


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rotation_turns_by_its_angle_in_any_shape(sign: int) -> None:
    height, width = 41, 61
    image = torch.zeros(1, 1, height, width)
    image[0, 0, 20, 40:60] = 255.0  # from ten to the right of the middle outwards
    [found] = changed(image, [("rotate", sign)], 1.0)[0]
    rows, columns = found.nonzero(as_tuple=True)
    angles = torch.atan2(rows.float() - 20, columns.float() - 30)
    turned = math.degrees(float(angles.median()))
    assert abs(turned) == pytest.approx(30, abs=2)
    distance = torch.hypot(rows.float() - 20, columns.float() - 30)
    assert float(distance.max()) == pytest.approx(29, abs=1.5)


def test_shears_and_translations_move_pixels_by_their_share() -> None:
    height, width = 40, 60
    image = torch.zeros(1, 1, height, width)
    image[0, 0, 10, 30] = 255.0
    moved = {
        (name, sign): changed(image, [(name, sign)], 1 / 3)[0, 0].nonzero().tolist()
        for name in SHAPES
        for sign in (1, -1)
    }
    assert moved["translate_x", 1] == [[10, 21]]  # 0.15 of 60
    assert moved["translate_y", -1] == [[16, 30]]  # 0.15 of 40
    assert moved["shear_x", 1] == [[10, 31]]  # 0.1 of the 9.5 rows to the middle
    assert moved["shear_x", -1] == [[10, 29]]


def test_the_identity_of_a_map_leaves_every_pixel() -> None:
    images = pictures()
    maps = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).expand(len(images), 2, 3)
    assert torch.equal(affine(images, maps), images)


@pytest.mark.parametrize("name", CHANGES)
def test_zero_strength_changes_nothing(name: str) -> None:
    images = pictures()
    found = changed(images, [(name, 1)] * len(images), 0.0)
    if name in ("autocontrast", "equalize"):  # they have no strength
        assert not torch.equal(found, images)
    else:
        assert (found - images).abs().max() < 1e-3


def test_an_even_image_has_no_contrast_to_stretch() -> None:
    even = torch.full((1, 3, 4, 4), 90.0)
    for name in ("autocontrast", "equalize", "contrast", "color", "sharpness"):
        assert (changed(even, [(name, 1)], 1.0) - even).abs().max() < 1e-3


def test_grey_images_and_tiny_ones_are_changed_too() -> None:
    for channels, size in ((1, (5, 5)), (4, (3, 3)), (3, (1, 2))):
        given = examples(40, size, channels)
        assert RandAugmentConfig(n_ops=3)(given, dice(40)).images.isfinite().all()


def test_every_change_is_drawn_alike() -> None:
    rngs = dice(5000)
    drawn = Counter(rng.choice(CHANGES) for rng in rngs)
    assert len(CHANGES) == 14
    assert drawn.keys() == set(CHANGES)
    assert max(drawn.values()) < 1.3 * 5000 / 14
    assert set(COLOURS) >= ONE_SIDED


def test_more_changes_change_more() -> None:
    given = examples(200, (8, 8))
    apart = [
        float((RandAugmentConfig(n_ops=n)(given, dice(200)).images - given.images).abs().mean())
        for n in (1, 3)
    ]
    assert apart[0] < apart[1]
