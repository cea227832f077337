"""int4 weights: packed without loss, multiplied as their definition, in any shape."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.quantize.int4 import Groups, Int4Matrix, packed, restored, unpacked
from addnorm.quantize.rounding import round_nearest


@given(st.integers(1, 9), st.integers(1, 20))
def test_packing_loses_nothing(d_out: int, half: int) -> None:
    values = torch.randint(-8, 8, (d_out, 2 * half), dtype=torch.int8)
    assert packed(values).shape == (d_out, half)
    assert torch.equal(unpacked(packed(values)), values)


def test_the_first_of_two_is_in_the_lower_half() -> None:
    assert packed(torch.tensor([[-8, 7]], dtype=torch.int8)).tolist() == [[0xF0]]


@given(st.integers(1, 40), st.integers(1, 100), st.sampled_from([32, 64, 128]))
def test_rows_and_products_are_those_of_the_definition(d_out: int, d_in: int, size: int) -> None:
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
    found = matrix.times(x)
    assert found.dtype == torch.float32
    assert (found.double() - want).norm() <= 5e-3 * want.norm()
    exact = matrix.times(x.double())
    torch.testing.assert_close(exact, x.double() @ matrix.dequantized().double().T)


def test_changed_weights_are_seen_by_the_kernel() -> None:
    one, other = (Int4Matrix(round_nearest(torch.randn(16, 32), 32), 32) for _ in range(2))
    x = torch.randn(4, 32)
    one.times(x)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one.times(x), other.times(x))


def test_an_empty_batch() -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(16, 32), 32), 32)
    assert matrix.times(torch.zeros(0, 3, 32)).shape == (0, 3, 16)


def test_four_and_a_half_bits_a_weight() -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(64, 128), 32), 128)
    held = sum(tensor.nbytes for tensor in matrix.state_dict().values())
    assert held * 8 == 64 * 128 * 4.5


def test_a_group_of_zeros() -> None:
    values, scale = torch.zeros(1, 32, dtype=torch.int8), torch.ones(1, 1).bfloat16()
    assert not restored(packed(Groups(values, scale).values), scale, 32).any()
