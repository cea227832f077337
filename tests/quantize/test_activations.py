"""Rounded inputs: by row and by range, as float64 computes them; a range cuts what is larger."""

import pytest
import torch

from addnorm.quantize.activations import (
    DynamicConfig,
    RoundedByRange,
    RoundedByRow,
    StaticConfig,
    Unrounded,
    WeightsOnlyConfig,
)
from addnorm.quantize.int8 import Int8Matrix


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 4, 5), (0, 5)])
def test_one_scale_for_all_inputs(shape: tuple[int, ...]) -> None:
    x, matrix = torch.randn(shape), Int8Matrix(torch.randn(7, 5))
    found = RoundedByRange(1.5)(x, matrix)
    scale = torch.tensor(1.5 / 127, dtype=torch.float32).double()
    whole = (x.double() / scale).round().clamp(-127, 127)
    want = whole @ matrix.values.double().T * scale * matrix.scale.double()
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


def test_what_is_larger_than_the_range_is_cut() -> None:
    matrix = Int8Matrix(torch.eye(3))
    x = torch.tensor([[5.0, -9.0, 0.5]])
    torch.testing.assert_close(
        RoundedByRange(1.0)(x, matrix), torch.tensor([[1.0, -1.0, 64 / 127]])
    )


def test_weights_only_rounds_no_input() -> None:
    x, matrix = torch.randn(3, 5), Int8Matrix(torch.randn(7, 5))
    exact = x.double() @ matrix.dequantized().double().T
    torch.testing.assert_close(Unrounded()(x, matrix).double(), exact, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(RoundedByRow()(x, matrix).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [Unrounded(), RoundedByRow(), RoundedByRange()])
def test_the_type_of_the_input_is_kept(inputs: torch.nn.Module) -> None:
    x, matrix = torch.randn(3, 5).bfloat16(), Int8Matrix(torch.randn(7, 5))
    assert inputs(x, matrix).dtype == torch.bfloat16


def test_configs_build_their_modules() -> None:
    assert isinstance(WeightsOnlyConfig().build(), Unrounded)
    assert isinstance(DynamicConfig().build(), RoundedByRow)
    built = StaticConfig().build(2.0)
    assert isinstance(built, RoundedByRange)
    assert float(built.scale) == pytest.approx(2.0 / 127)
