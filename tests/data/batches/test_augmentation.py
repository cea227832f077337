"""Augmentations of images, against formulas and for what they must leave alone; mixing."""

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from addnorm.data import Corpus, Image
from addnorm.data.batches.augmentation import (
    CropConfig,
    CutMixConfig,
    ErasingConfig,
    Examples,
    FlipConfig,
    MixupConfig,
    shares,
)
from addnorm.data.batches.batch import Batch
from addnorm.data.batches.images import ExamplesConfig
from addnorm.data.batches.randaugment import RandAugmentConfig
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode
from addnorm.training.loss import soft_cross_entropy_sum

EVERY: tuple[Any, ...] = (
    CropConfig(padding=2),
    FlipConfig(),
    RandAugmentConfig(),
    ErasingConfig(),
    MixupConfig(),
    CutMixConfig(),
)


def dice(n: int, seed: int = 0) -> list[Random]:
    return [Random(seed * 10_000 + i) for i in range(n)]


def examples(n: int, size: tuple[int, int] = (6, 8), channels: int = 3) -> Examples:
    torch.manual_seed(0)
    images = torch.randint(1, 256, (n, channels, *size)).float()
    return Examples(images, torch.eye(5)[torch.arange(n) % 5])


@pytest.mark.parametrize("augmentation", EVERY, ids=lambda one: one.kind)
def test_a_change_follows_from_its_draws_and_leaves_what_it_was_given(augmentation: Any) -> None:
    given = examples(12)
    before = given.images.clone()
    first, again = (augmentation(given, dice(12)) for _ in range(2))
    assert torch.equal(given.images, before)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, augmentation(given, dice(12, 1)).images)
    assert first.images.shape == before.shape
    assert first.images.min() >= 0
    assert first.images.max() <= 255
    assert torch.allclose(first.classes.sum(1), torch.ones(12))


@pytest.mark.parametrize("augmentation", EVERY[:4], ids=lambda one: one.kind)
def test_an_image_does_not_depend_on_its_neighbours(augmentation: Any) -> None:
    given = examples(12)
    whole = augmentation(given, dice(12)).images
    some = [3, 7, 8]
    alone = Examples(given.images[some], given.classes[some])
    found = augmentation(alone, [dice(12)[i] for i in some]).images
    assert torch.equal(found, whole[some])


def test_a_crop_is_a_window_of_the_framed_image() -> None:
    given = examples(400, (5, 6), 1)
    found = CropConfig(padding=2).__call__(given, dice(400)).images
    offsets = set[tuple[int, int]]()
    for image, out in zip(given.images, found, strict=True):
        wide = torch.zeros(1, 9, 10)
        wide[:, 2:7, 2:8] = image
        at = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(wide[:, top : top + 5, left : left + 6], out)
        ]
        assert at
        offsets.add(at[0])
    assert offsets == {(top, left) for top in range(5) for left in range(5)}


def test_a_mirrored_frame_has_no_black() -> None:
    found = CropConfig(padding=3, frame="reflect")(examples(100), dice(100)).images
    assert found.min() > 0


def test_a_frame_wider_than_the_image_cannot_be_mirrored() -> None:
    with pytest.raises(InputError, match=r"padding = 7 .* 6 × 8: at most 5"):
        CropConfig(padding=7, frame="reflect")(examples(2), dice(2))


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_a_share_of_the_images_is_flipped(probability: float) -> None:
    given = examples(2000, (2, 3), 1)
    found = FlipConfig(probability=probability)(given, dice(2000)).images
    flipped = (found == given.images.flip(-1)).all(-1).all(-1).all(-1)
    assert torch.equal(found[~flipped], given.images[~flipped])
    assert float(flipped.float().mean()) == pytest.approx(probability, abs=0.04)


def erased(config: ErasingConfig, n: int, size: tuple[int, int]) -> Tensor:
    """Where the images of -1 were filled."""
    given = Examples(torch.full((n, 1, *size), -1.0), torch.ones(n, 1))
    return config(given, dice(n)).images[:, 0] >= 0


def test_erasing_fills_one_rectangle_of_a_share_in_its_range() -> None:
    config = ErasingConfig(probability=0.6, area=(0.1, 0.3), aspect=0.5)
    where = erased(config, 1000, (20, 30))
    hit = where.flatten(1).any(1)
    assert float(hit.float().mean()) == pytest.approx(0.6, abs=0.05)
    for mask in where[hit]:
        rows, columns = mask.any(1).sum(), mask.any(0).sum()
        assert rows * columns == mask.sum()  # a whole rectangle
        assert 0.09 <= float(mask.float().mean()) <= 0.32
        assert 0.4 <= float(rows / columns) <= 2.5
    middle = where[hit].float().mean(0)
    assert middle[8:12, 12:18].min() > middle[0, 0]  # anywhere, so the middle most often


def test_erased_pixels_are_any() -> None:
    given = Examples(torch.full((50, 3, 16, 16), -1.0), torch.ones(50, 1))
    found = ErasingConfig(probability=1.0, area=(0.3, 0.4))(given, dice(50)).images
    noise = found[found >= 0]
    assert float(noise.mean()) == pytest.approx(127.5, abs=3)
    assert {0.0, 255.0} <= set(noise.unique().tolist())


def test_a_rectangle_that_never_fits_is_left_out() -> None:
    assert not erased(ErasingConfig(probability=1.0, area=(0.9, 1.0), aspect=0.01), 5, (1, 9)).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: FlipConfig(probability=1.5), "probability = 1.5"),
        (lambda: FlipConfig(probability=0), "probability = 0"),
        (lambda: CropConfig(padding=0), "padding = 0"),
        (lambda: ErasingConfig(area=(0.4, 0.1)), r"the least first, \(0\.1, 0\.4\)"),
        (lambda: ErasingConfig(aspect=0), "aspect = 0"),
        (lambda: MixupConfig(alpha=-1), "alpha = -1"),
        (lambda: RandAugmentConfig(magnitude=11), "magnitude = 11"),
        (lambda: ExamplesConfig(augment=("flop",)), "flop"),  # type: ignore[arg-type]
        (lambda: ExamplesConfig(augment=({"kind": "flip", "share": 1},)), "share is not a field"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_one_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        wrong()
    assert "\n" not in str(caught.value)


# Batches.


def corpus(n: int = 20) -> EncodedCorpus:
    images = examples(n).images.to(torch.uint8)
    labelled = [Image(one, "abc"[i % 3]) for i, one in enumerate(images)]
    return encode(Corpus(train=labelled, valid=labelled[:4], test=labelled[:3]), None)


def same(one: Batch, other: Batch) -> bool:
    soft = one.soft_targets, other.soft_targets
    return (
        one.indices == other.indices
        and torch.equal(one.inputs["inputs"], other.inputs["inputs"])
        and (soft == (None, None) or torch.equal(*soft))  # type: ignore[arg-type]
    )


def test_an_epoch_resumes_from_any_place() -> None:
    """All changes are functions of (seed, epoch, place): no state is kept."""
    config = ExamplesConfig(size=6, shift=1, augment=EVERY)
    whole = list(config.build(corpus(), seed=3).train.batches(2))
    fresh = config.build(corpus(), seed=3).train
    next(iter(fresh.batches(1)))
    for start in range(4):
        rest = list(fresh.batches(2, start))
        assert len(rest) == 4 - start
        assert all(map(same, whole[start:], rest))
    for other in (fresh.batches(3), config.build(corpus(), seed=4).train.batches(2)):
        assert not same(next(iter(other)), whole[0])


def test_only_training_images_change() -> None:
    loaders = ExamplesConfig(augment=EVERY).build(corpus(), seed=3)
    plain = ExamplesConfig().build(corpus(), seed=3)
    for one, other in ((loaders.valid, plain.valid), (loaders.test, plain.test)):
        assert one is not None
        assert other is not None
        assert all(map(same, one.batches(), other.batches()))
        assert all(batch.soft_targets is None for batch in one.batches())


def test_changes_leave_the_order_as_it_is() -> None:
    changed = ExamplesConfig(size=6, augment=(FlipConfig(),)).build(corpus(), seed=3).train
    plain = ExamplesConfig(size=6).build(corpus(), seed=3).train
    for one, other in zip(changed.batches(), plain.batches(), strict=True):
        assert one.indices == other.indices
        assert one.soft_targets is None
        assert torch.equal(one.targets, other.targets)
        a, b = one.inputs["inputs"], other.inputs["inputs"]
        kept = (a == b).flatten(1).all(1)
        assert torch.equal(torch.where(kept[:, None, None, None], a, a.flip(-1)), b)


def test_mixed_batches_have_probabilities_of_every_class() -> None:
    config = ExamplesConfig(size=7, augment=(MixupConfig(alpha=1.0), CutMixConfig()))
    for batch in config.build(corpus(), seed=3).train.batches():
        assert batch.soft_targets is not None
        assert batch.soft_targets.shape == (len(batch.indices), 3)
        assert batch.n_tokens == len(batch.indices)
        assert batch.to("cpu").soft_targets is not None
        assert torch.allclose(batch.soft_targets.sum(1), torch.ones(len(batch.indices)))


def test_mixup_is_the_formula() -> None:
    """`λ x_i + (1 - λ) x_j` (Zhang et al. 2018, eq. 1), with the image before."""
    given = examples(9)
    config = MixupConfig(alpha=0.7)
    found = config(given, dice(9))
    share = shares(0.7, 1.0, dice(9)).tolist()
    for i, own in enumerate(share):
        image = own * given.images[i].double() + (1 - own) * given.images[i - 1].double()
        classes = own * given.classes[i] + (1 - own) * given.classes[i - 1]
        torch.testing.assert_close(found.images[i].double(), image, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(found.classes[i], classes)


def test_the_loss_of_mixed_classes_is_the_mixed_loss() -> None:
    """`λ CE(y_i) + (1 - λ) CE(y_j)`, as the authors' code has it, in float64."""
    found = MixupConfig(alpha=1.0)(examples(9), dice(9))
    share, classes = shares(1.0, 1.0, dice(9)).double(), torch.arange(9) % 5
    logits = torch.randn(9, 5, dtype=torch.float64)
    logs = logits.log_softmax(-1)
    rows = torch.arange(9)
    own, other = logs[rows, classes], logs[rows, classes.roll(1)]
    expected = -(share * own + (1 - share) * other).sum()
    assert float(soft_cross_entropy_sum(logits, found.classes)) == pytest.approx(
        float(expected), rel=1e-6
    )


@pytest.mark.parametrize(("alpha", "deviation"), [(1.0, 12**-0.5), (0.2, 0.5 / 1.4**0.5)])
def test_shares_are_of_the_beta_distribution(alpha: float, deviation: float) -> None:
    drawn = shares(alpha, 1.0, dice(4000))
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(drawn.std()) == pytest.approx(deviation, abs=0.02)


@pytest.mark.parametrize("config", [MixupConfig(probability=0.3), CutMixConfig(probability=0.3)])
def test_a_share_of_the_images_is_mixed(config: MixupConfig | CutMixConfig) -> None:
    given = examples(3000, (16, 16), 1)
    found = config(given, dice(3000))
    kept = (found.images == given.images).flatten(1).all(1)
    assert torch.equal(found.classes[kept], given.classes[kept])
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.05)


def test_cutmix_pastes_a_rectangle_of_the_area_that_the_classes_say() -> None:
    n, height, width = 1000, 12, 16
    images = torch.arange(n, dtype=torch.float32).view(n, 1, 1, 1).expand(n, 2, height, width)
    classes = torch.eye(n)
    found = CutMixConfig()(Examples(images, classes), dice(n))
    areas = list[float]()
    for i in range(n):
        pasted = found.images[i] != i
        assert torch.equal(pasted[0], pasted[1])
        assert torch.equal(found.images[i][pasted], images[i - 1][pasted])
        mask = pasted[0]
        assert mask.any(1).sum() * mask.any(0).sum() == mask.sum()
        area = float(mask.float().mean())
        assert float(found.classes[i, i - 1]) == pytest.approx(area, abs=1e-6)
        assert float(found.classes[i, i]) == pytest.approx(1 - area, abs=1e-6)
        areas.append(area)
    # 1 - λ is even in [0, 1], its middle anywhere: what falls outside makes the mean smaller.
    assert 0.2 < sum(areas) / n < 0.4


def test_an_image_alone_is_mixed_with_itself() -> None:
    for config in (MixupConfig(), CutMixConfig()):
        found = config(examples(1), dice(1))
        torch.testing.assert_close(found.images, examples(1).images)
        torch.testing.assert_close(found.classes, examples(1).classes)
