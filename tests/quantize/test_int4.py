"""int4 weights: packed without loss, multiplied as their definition, rounded within half a step."""

import logging
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.errors import InputError
from addnorm.quantize.int4 import (
    Groups,
    Int4Matrix,
    output_error,
    packed,
    restored,
    round_gptq,
    round_hqq,
    round_nearest,
    rounded_blocks,
    unpacked,
)


@given(st.integers(1, 9), st.integers(1, 20))
def test_packing_round_trips(d_out: int, half: int) -> None:
    values = torch.randint(-8, 8, (d_out, 2 * half), dtype=torch.int8)
    assert packed(values).shape == (d_out, half)
    assert torch.equal(unpacked(packed(values)), values)


def test_the_first_of_two_integers_is_in_the_lower_half() -> None:
    assert packed(torch.tensor([[-8, 7]], dtype=torch.int8)).tolist() == [[0xF0]]


def test_a_transposed_view_is_stored_row_by_row() -> None:
    weight = torch.randn(64, 10)
    turned = Int4Matrix(round_nearest(weight.t(), 32), 64)
    assert turned.values.is_contiguous()
    assert turned.scale.is_contiguous()
    assert torch.equal(turned.values, Int4Matrix(round_nearest(weight.t().clone(), 32), 64).values)


@given(st.integers(1, 40), st.integers(1, 100), st.sampled_from([32, 64, 128]))
def test_rows_and_scales_equal_the_definition(d_out: int, d_in: int, size: int) -> None:
    groups = round_nearest(torch.randn(d_out, d_in), size)
    matrix = Int4Matrix(groups, d_in)
    by_hand = torch.zeros(d_out, d_in, dtype=torch.float64)
    for i in range(d_out):
        for j in range(d_in):
            by_hand[i, j] = float(groups.values[i, j]) * float(groups.scale[i, j // size])
    assert torch.equal(matrix.dequantized().double(), by_hand)
    assert torch.equal(matrix.rows(torch.arange(d_out)).double(), by_hand)
    assert torch.equal(matrix.scales() * groups.values[:, :d_in], by_hand.float())
    assert matrix.group_size == size


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize(("d_out", "d_in", "size"), [(16, 64, 64), (65, 100, 32), (3, 256, 256)])
def test_the_kernel_multiplies_in_bfloat16(rows: int, d_out: int, d_in: int, size: int) -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(d_out, d_in), size), d_in)
    x = torch.randn(rows, d_in)
    want = x.bfloat16().double() @ matrix.dequantized().double().T
    product = matrix.times(x)
    assert product.dtype == torch.float32
    assert (product.double() - want).norm() <= 5e-3 * want.norm()
    exact = matrix.times(x.double())
    torch.testing.assert_close(exact, x.double() @ matrix.dequantized().double().T)


@pytest.mark.parametrize("d_in", [1, 32, 100])
def test_inputs_are_rounded_in_blocks_of_32(d_in: int) -> None:
    x = torch.randn(3, d_in)
    x[1] = 0.0
    by_hand = x.clone()
    for begin in range(0, d_in, 32):
        for row, block in enumerate(x[:, begin : begin + 32]):
            step = block.abs().max() / 127
            if step > 0:
                by_hand[row, begin : begin + 32] = (block / step).round() * step
    assert torch.equal(rounded_blocks(x), by_hand)
    torch.testing.assert_close(rounded_blocks(by_hand), by_hand, rtol=1e-6, atol=0)
    assert rounded_blocks(x.bfloat16()).dtype is torch.bfloat16
    matrix = Int4Matrix(round_nearest(torch.randn(5, d_in), 32), d_in)
    want = by_hand.double() @ matrix.dequantized().double().T
    torch.testing.assert_close(matrix.times_rounded(x).double(), want, rtol=0.02, atol=0.05)


def test_changed_weights_are_seen_by_the_kernel() -> None:
    matrix, other = (Int4Matrix(round_nearest(torch.randn(16, 32), 32), 32) for _ in range(2))
    x = torch.randn(4, 32)
    matrix.times(x)
    matrix.load_state_dict(other.state_dict())
    assert torch.equal(matrix.times(x), other.times(x))


def test_an_empty_batch_is_accepted() -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(16, 32), 32), 32)
    assert matrix.times(torch.zeros(0, 3, 32)).shape == (0, 3, 16)


def test_groups_of_32_take_four_and_a_half_bits_a_weight() -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(64, 128), 32), 128)
    n_bytes = sum(tensor.nbytes for tensor in matrix.state_dict().values())
    assert n_bytes * 8 == 64 * 128 * 4.5


def test_a_group_of_zeros_stays_zero() -> None:
    values, scale = torch.zeros(1, 32, dtype=torch.int8), torch.ones(1, 1).bfloat16()
    assert not restored(packed(Groups(values, scale).values), scale, 32).any()


# Rounding.


def plain(groups: Groups, d_in: int) -> Tensor:
    return Int4Matrix(groups, d_in).dequantized().double()


@given(st.integers(1, 5), st.integers(1, 80), st.floats(1e-6, 1e4))
def test_rounding_to_the_nearest_is_off_by_half_a_step_at_most(
    d_out: int, d_in: int, size: float
) -> None:
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
def test_gptq_is_better_than_the_nearest_on_its_inputs(seed: int, d_in: int, size: int) -> None:
    """Measured on the inputs themselves in float64; strictly better where features go together."""
    torch.manual_seed(seed)
    weight = torch.randn(24, d_in)
    x = torch.randn(300, d_in).double() @ torch.randn(d_in, d_in).double()
    gptq = plain(round_gptq(weight, x.T @ x, size), d_in)
    nearest = plain(round_nearest(weight, size), d_in)
    error, other = ((w - weight.double()) @ x.T for w in (gptq, nearest))
    assert error.norm() < 0.9 * other.norm()


def test_gptq_without_inputs_is_the_nearest() -> None:
    weight = torch.randn(4, 32)
    groups = round_gptq(weight, torch.zeros(32, 32), 32)
    assert torch.equal(groups.values, round_nearest(weight, 32).values)


def test_gptq_handles_a_dead_feature_and_few_inputs() -> None:
    """Fewer inputs than features: the gram has no inverse by itself."""
    x = torch.randn(5, 64).double()
    x[:, 3] = 0.0
    weight = torch.randn(8, 64)
    groups = round_gptq(weight, x.T @ x, 32)
    assert plain(groups, 64).isfinite().all()
    wide = weight.double()
    nearest = output_error(round_nearest(weight, 32), wide, x.T @ x)
    assert output_error(groups, wide, x.T @ x) <= nearest


def test_the_output_error_equals_that_of_the_outputs() -> None:
    weight, x = torch.randn(6, 32).double(), torch.randn(50, 32).double()
    groups = round_nearest(weight, 32)
    by_hand = (((plain(groups, 32) - weight) @ x.T) ** 2).sum()
    assert output_error(groups, weight, x.T @ x) == pytest.approx(float(by_hand))


def test_hqq_is_near_the_weights() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    weight = torch.randn(8, 100)
    before = logging.root.manager.disable
    hqq, nearest = (plain(by(weight, 32), 100) for by in (round_hqq, round_nearest))
    assert logging.root.manager.disable == before
    error, other = ((w - weight.double()).norm() for w in (hqq, nearest))
    assert error < 1.1 * other


def test_missing_torchao_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization.quant_primitives", None)
    with pytest.raises(InputError, match=r'pip install "addnorm\[compression\]"'):
        round_hqq(torch.randn(2, 32), 32)
