"""Schedules: their formulas, their end points, and too long warm-ups."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.contracts import check_records, named

from addnorm.training.schedule import (
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    LinearConfig,
    ScheduleConfig,
    WarmupStableDecayConfig,
)

RECORDS = [
    ConstantConfig(warmup=3),
    InverseSquareRootConfig(warmup=10),
    LinearConfig(warmup=10, floor=0.1),
    CosineConfig(warmup=10, floor=0.1),
    WarmupStableDecayConfig(warmup=10, decay=0.2, floor=0.1),
]
TOTAL = 100


def curve(schedule: ScheduleConfig, total: int = TOTAL) -> list[float]:
    return [schedule.factor(step, total) for step in range(1, total + 1)]


def test_every_schedule_has_a_record() -> None:
    check_records(ScheduleConfig, RECORDS)


@pytest.mark.parametrize("schedule", named(RECORDS))
def test_rises_in_a_line_to_the_peak_and_never_rises_again(schedule: ScheduleConfig) -> None:
    warmup, factors = schedule.warmup, curve(schedule)
    assert factors[:warmup] == pytest.approx([step / warmup for step in range(1, warmup + 1)])
    assert max(factors) == pytest.approx(1.0)
    after = factors[warmup - 1 :]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("schedule", named(RECORDS[2:]))
def test_the_last_step_still_moves_and_the_next_would_be_at_the_floor(
    schedule: ScheduleConfig,
) -> None:
    assert schedule.factor(TOTAL, TOTAL) > 0.1
    assert schedule.factor(TOTAL + 1, TOTAL) == pytest.approx(0.1)
    assert schedule.factor(2 * TOTAL, TOTAL) == pytest.approx(0.1)


@given(
    total=st.integers(1, 50),
    warmup=st.integers(0, 100),
    decay=st.floats(0, 1),
    floor=st.floats(0, 1),
    step=st.integers(1, 120),
)
def test_factors_are_between_0_and_1_for_all_settings(
    total: int, warmup: int, decay: float, floor: float, step: int
) -> None:
    """Also where the warm-up is longer than the run: a negative rate would climb the loss."""
    for schedule in (
        ConstantConfig(warmup=warmup),
        InverseSquareRootConfig(warmup=warmup),
        LinearConfig(warmup=warmup, decay=decay, floor=floor),
        CosineConfig(warmup=warmup, floor=floor),
        WarmupStableDecayConfig(warmup=warmup, decay=decay, floor=floor),
    ):
        assert 0.0 <= schedule.factor(step, total) <= 1.0
        if warmup > step and total >= warmup:
            assert schedule.factor(step, total) <= step / warmup + 1e-12


@pytest.mark.parametrize("kind", [LinearConfig, CosineConfig])
def test_a_warm_up_longer_than_the_run_only_rises(kind: type) -> None:
    factors = curve(kind(warmup=20), total=10)
    assert factors == pytest.approx([step / 20 for step in range(1, 11)])


def test_linear_equals_its_formula() -> None:
    assert curve(LinearConfig(), 4) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert curve(LinearConfig(decay=0.5), 4) == pytest.approx([1, 1, 1, 0.5])
    assert curve(LinearConfig(decay=0.0), 4) == [1.0] * 4
    assert curve(LinearConfig(warmup=2, floor=0.5), 4) == pytest.approx([0.5, 1, 1, 0.75])


def test_cosine_equals_its_formula() -> None:
    expected = [(1 + math.cos(math.pi * n / 8)) / 2 for n in range(8)]
    assert curve(CosineConfig(), 8) == pytest.approx(expected)
    assert CosineConfig(warmup=10, floor=0.2).factor(56, 100) == pytest.approx(0.6)  # half way


def test_inverse_square_root_equals_the_formula_of_the_paper() -> None:
    """`d^-½ min(step^-½, step warmup^-1.5)`, over its peak."""
    schedule, d_model, warmup = InverseSquareRootConfig(warmup=4000), 512, 4000
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert schedule.factor(step, 100_000) * (d_model * warmup) ** -0.5 == pytest.approx(paper)
    assert curve(InverseSquareRootConfig(warmup=0), 4) == pytest.approx([1, 0.5**0.5, 3**-0.5, 0.5])


def test_warmup_stable_decay_equals_its_formula() -> None:
    factors = curve(WarmupStableDecayConfig(warmup=10, decay=0.2))
    assert factors[9:81] == [1.0] * 72
    assert factors[90] == pytest.approx(1 - math.sqrt(0.5))  # half of the decay gone
    assert curve(WarmupStableDecayConfig(decay=0.0), 5) == [1.0] * 5


@pytest.mark.parametrize("bad", [{"warmup": -1}, {"decay": 1.5}, {"floor": -0.1}, {"floor": 2}])
def test_invalid_settings_are_rejected(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LinearConfig(**bad)
