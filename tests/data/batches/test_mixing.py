"""Mixup and CutMix against their papers: shares, areas, and the loss in float64."""

import pytest
import torch
from tests.data.batches.test_augmentation import dice, examples

from addnorm.data.batches.augmentation import Examples
from addnorm.data.batches.mixing import CutMixConfig, MixupConfig, shares
from addnorm.training.loss import soft_cross_entropy_sum


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
