"""Instance norm of windows: the paper's equations in float64, and what undoes them."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_gradients
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.nn.instance_norm import InstanceNorm

NORMS = ["none", "instance", "instance_last"]


def whole(n: int) -> torch.Tensor:
    return torch.ones(2, 1, n, dtype=torch.bool)


def test_it_takes_level_and_scale_away() -> None:
    norm, series = InstanceNorm(3, "instance"), torch.randn(2, 3, 50).double()
    got, _ = norm(series, whole(50))
    assert_close(got, F.instance_norm(series), rtol=0, atol=1e-12)
    assert_close(norm(1000 * series + 7, whole(50))[0], got, rtol=0, atol=1e-4)
    assert norm(series.bfloat16(), whole(50))[0].dtype == torch.bfloat16
    assert (norm(torch.ones(2, 3, 4), whole(4))[0] == 0).all()


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    name=st.sampled_from(NORMS),
    affine=st.sampled_from(["none", "learned"]),
    level=st.sampled_from([0.0, -300.0]),
)
def test_equals_the_equations_and_is_undone(
    lengths: list[int], name: Any, affine: Any, level: float
) -> None:
    """Kim et al. 2022, eq. 1 to 3, by plain loops over the real steps."""
    norm = InstanceNorm(2, name, affine).double()
    gain, bias = [1.0, 1.0], [0.0, 0.0]
    if affine == "learned":
        gain, bias = [0.5, -2.0], [0.25, 1.0]
        norm.load_state_dict({"gain": torch.tensor(gain), "bias": torch.tensor(bias)})
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    series = torch.where(valid[:, None], torch.randn(len(lengths), 2, max(lengths)) + level, 0.0)
    got, statistics = norm(series.double(), valid[:, None])
    for i, n in enumerate(lengths):
        for c in range(2):
            values = series[i, c, :n].double().tolist()
            mean = sum(values) / n
            deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / n + 1e-5)
            centre = values[-1] if name == "instance_last" else mean
            if name == "none":
                centre, deviation = 0.0, 1.0
            expected = [gain[c] * (v - centre) / deviation + bias[c] for v in values]
            assert_close(got[i, c, :n].tolist(), expected, rtol=0, atol=1e-9)
    assert (got[~valid[:, None].expand_as(got)] == 0).all()
    restored = torch.where(valid[:, None], statistics.restored(got), 0.0)
    assert_close(restored, series.double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NORMS)
def test_gradients(name: Any) -> None:
    valid = torch.tensor([[[True] * 4], [[True, True, False, False]]])
    norm = InstanceNorm(3, name, "learned")
    series = torch.where(valid, torch.randn(2, 3, 4), 0.0)
    check_gradients(norm, lambda m, x: m(x, valid)[0], series, twice=True)
