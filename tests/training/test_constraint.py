"""Rows held to a largest norm: the equation, after each step, with averages and resuming."""

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from tests.training import tiny
from tests.training.tiny import At, Crash, crash, everything, same
from torch import nn

from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.training.callbacks import StepEvent
from addnorm.training.constraint import MaxNorm, MaxNormConfig
from addnorm.training.optim import AdadeltaConfig

TIGHT = MaxNormConfig(bound=0.4, parameters="*up_proj.weight")
SETTINGS = {"constraint": TIGHT, "optimizer": AdadeltaConfig(), "lr": 1.0}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    parts = {"attention": AttentionConfig(n_heads=2), "head": ClassificationHeadConfig()}
    return EncoderConfig(d_model=8, n_layers=1, **parts).build(11, 6)


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2)])
def test_each_row_equals_its_formula(shape: tuple[int, ...]) -> None:
    """Short rows stay bit for bit, long ones keep their direction; a filter is one row."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    norms = weight.detach().flatten(1).norm(dim=1)
    bound = float(norms.median())
    before = weight.detach().clone()
    MaxNorm([weight], bound=bound).apply()
    for old, new, norm in zip(before, weight.detach(), norms, strict=True):
        if norm <= bound:
            assert torch.equal(old, new)
        else:
            torch.testing.assert_close(new, old * bound / norm, rtol=1e-6, atol=1e-9)


def test_by_default_the_last_matrix_of_a_classifier_is_bounded() -> None:
    model = classifier()
    [weight] = MaxNormConfig().build(model).weights
    assert weight is dict(model.named_parameters())["head.proj.weight"]


class Norms:
    """The largest norms of the rows that are bound, after each step."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.seen: list[float] = []

    def on_step(self, _: StepEvent) -> None:
        assert self.model is not None
        rows = [w.detach().norm(dim=1).max() for w in TIGHT.build(self.model).weights]
        self.seen.append(float(torch.stack(rows).max()))


@pytest.mark.usefixtures("types_unchecked")
def test_rows_are_within_the_bound_after_each_step_and_so_is_their_average(tmp_path: Path) -> None:
    norms = Norms()
    trainer = tiny.trainer(tmp_path, callbacks=[norms], ema=0.5, **SETTINGS)
    norms.model = trainer.model
    trainer.fit()
    assert len(norms.seen) == trainer.total_steps
    assert max(norms.seen) <= 0.4 * (1 + 1e-5)
    assert max(norms.seen) == pytest.approx(0.4, rel=1e-4), "the bound was reached"
    assert all(w.norm(dim=1).max() > 0.4 for w in TIGHT.build(tiny.build()).weights)
    for weight in TIGHT.build(trainer.model).weights:  # those of the moving average
        assert weight.detach().norm(dim=1).max() <= 0.4 * (1 + 1e-5)


@pytest.mark.usefixtures("types_unchecked")
def test_adadelta_under_a_bound_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight = tiny.trainer(tmp_path / "straight", **SETTINGS)
    straight.fit()
    first = tiny.trainer(tmp_path / "half", callbacks=[At(8, crash)], **SETTINGS)
    with pytest.raises(Crash):
        first.fit()
    second = tiny.trainer(tmp_path / "half", seed=7, **SETTINGS)
    assert second.resume() == []
    assert second.state.step > 0
    second.fit()
    same(everything(second), everything(straight))


def test_a_name_without_a_match_is_rejected_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'head.project.weight': .* is 'head.proj.weight'"):
        MaxNormConfig(parameters="head.project.weight").build(classifier())


def test_a_vector_is_rejected() -> None:
    with pytest.raises(InputError, match=r"head.proj.bias has one axis and so no rows"):
        MaxNormConfig(parameters="head.proj.*").build(classifier())


@pytest.mark.parametrize("bound", [0.0, -1.0, "three"])
def test_a_bound_must_be_positive(bound: object) -> None:
    with pytest.raises(ValueError, match="bound"):
        TypeAdapter(MaxNormConfig).validate_python({"bound": bound})
