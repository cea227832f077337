"""Rounding to four bits: half a step at most to the nearest; GPTQ never worse than that."""

import logging
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.errors import InputError
from addnorm.quantize.int4 import Groups, Int4Matrix
from addnorm.quantize.rounding import output_error, round_gptq, round_hqq, round_nearest


def plain(groups: Groups, d_in: int) -> Tensor:
    return Int4Matrix(groups, d_in).dequantized().double()


@given(st.integers(1, 5), st.integers(1, 80), st.floats(1e-6, 1e4))
def test_the_nearest_is_off_by_half_a_step(d_out: int, d_in: int, size: float) -> None:
    weight = torch.randn(d_out, d_in) * size
    groups = round_nearest(weight, 32)
    step = Int4Matrix(groups, d_in).scales().abs().double()
    off = (plain(groups, d_in) - weight.double()).abs()
    # The weight of the other sign and the same size is cut from 8 to 7 steps.
    cut = weight.double() / Int4Matrix(groups, d_in).scales().double() > 7.5
    assert (off <= 0.5001 * step)[~cut].all()
    assert (off <= 1.05 * step)[cut].all()


def test_the_largest_of_a_group_is_minus_eight() -> None:
    weight = torch.randn(4, 64)
    values = round_nearest(weight, 32).values.view(4, 2, 32)
    largest = weight.view(4, 2, 32).abs().argmax(-1, keepdim=True)
    assert (values.gather(-1, largest) == -8).all()


def test_zeros_stay_zeros() -> None:
    groups = round_nearest(torch.zeros(2, 40), 32)
    assert not groups.values.any()
    assert groups.scale.isfinite().all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d_in", "size"), [(64, 32), (100, 32), (256, 128)])
def test_gptq_is_no_worse_than_rounding_on_the_inputs_it_saw(
    seed: int, d_in: int, size: int
) -> None:
    """Measured on the inputs themselves in float64; strictly better where features go together."""
    torch.manual_seed(seed)
    weight = torch.randn(24, d_in)
    x = torch.randn(300, d_in).double() @ torch.randn(d_in, d_in).double()
    found = plain(round_gptq(weight, x.T @ x, size), d_in)
    nearest = plain(round_nearest(weight, size), d_in)
    error, other = ((w - weight.double()) @ x.T for w in (found, nearest))
    assert error.norm() < 0.9 * other.norm()


def test_gptq_of_what_was_never_seen_is_the_nearest() -> None:
    weight = torch.randn(4, 32)
    found = round_gptq(weight, torch.zeros(32, 32), 32)
    assert torch.equal(found.values, round_nearest(weight, 32).values)


def test_gptq_with_a_dead_feature_and_few_inputs() -> None:
    """Fewer inputs than features: the gram has no inverse by itself."""
    x = torch.randn(5, 64).double()
    x[:, 3] = 0.0
    weight = torch.randn(8, 64)
    groups = round_gptq(weight, x.T @ x, 32)
    assert plain(groups, 64).isfinite().all()
    wide = weight.double()
    nearest = output_error(round_nearest(weight, 32), wide, x.T @ x)
    assert output_error(groups, wide, x.T @ x) <= nearest


def test_the_output_error_is_that_of_the_outputs() -> None:
    weight, x = torch.randn(6, 32).double(), torch.randn(50, 32).double()
    groups = round_nearest(weight, 32)
    by_hand = (((plain(groups, 32) - weight) @ x.T) ** 2).sum()
    assert output_error(groups, weight, x.T @ x) == pytest.approx(float(by_hand))


def test_hqq_is_near_the_weights() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    weight = torch.randn(8, 100)
    before = logging.root.manager.disable
    found, nearest = (plain(by(weight, 32), 100) for by in (round_hqq, round_nearest))
    assert logging.root.manager.disable == before
    error, other = ((w - weight.double()).norm() for w in (found, nearest))
    assert error < 1.1 * other


def test_hqq_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization.quant_primitives", None)
    with pytest.raises(InputError, match=r'pip install "addnorm\[compression\]"'):
        round_hqq(torch.randn(2, 32), 32)
