"""Scaling of variables: the equations in float64, gaps, constants, and back to units."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from addnorm.data.scaling import Scaling

NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(st.lists(NUMBERS, min_size=2, max_size=12), st.sampled_from([0, 1, 3]))
def test_mean_and_deviation_skip_gaps(values: list[float], gaps: int) -> None:
    row = torch.tensor([*values, *[math.nan] * gaps], dtype=torch.float64)
    scaling = Scaling.standard(row[None])
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    assert_close(scaling.mean[0], mean, rtol=1e-9, atol=1e-9)
    if deviation > 1e-3:
        assert_close(scaling.deviation[0], deviation, rtol=1e-6, atol=1e-9)
        expected = (row - mean) / deviation
        assert_close(scaling.scaled(row[None])[0].double(), expected, rtol=1e-5, atol=1e-5,
                     equal_nan=True)  # fmt: skip
    back = scaling.in_units(scaling.scaled(row[None]))
    assert_close(back[0], row, rtol=1e-5, atol=1e-6 * (1 + abs(mean)) + deviation * 1e-5,
                 equal_nan=True)  # fmt: skip


def test_a_constant_keeps_its_scale_though_its_mean_is_rounded() -> None:
    row = torch.full((1, 8640), 0.1, dtype=torch.float64)
    assert row.numpy().std() > 0
    assert Scaling.standard(row).deviation == (1.0,)


def test_a_constant_keeps_its_scale() -> None:
    scaling = Scaling.standard(torch.tensor([[3.0, 3.0], [math.nan, math.nan]]))
    assert scaling == Scaling((3.0, 0.0), (1.0, 1.0))
    assert Scaling.none(2) == Scaling((0.0, 0.0), (1.0, 1.0))
