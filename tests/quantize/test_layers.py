"""Quantised layers: biases, smoothing, scale and cap as in the layers they replace."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full
from addnorm.quantize.int4 import Int4Matrix, round_nearest
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import (
    DynamicConfig,
    DynamicRounding,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedRecurrence,
    QuantizedTokenHead,
    RoundedByRange,
    StaticConfig,
    Unrounded,
    WeightsOnlyConfig,
)


def test_inputs_are_divided_by_the_smoothing() -> None:
    x, weight, smoothing = torch.randn(2, 3, 5), torch.randn(4, 5), torch.rand(5) + 0.5
    bias = torch.nn.Parameter(torch.randn(4))
    layer = QuantizedLinear(Int8Matrix(weight * smoothing), Unrounded(), bias, smoothing)
    assert layer.out_features == 4
    assert (layer(x) - torch.nn.functional.linear(x, weight, bias)).abs().max() < 0.05


def test_a_head_scales_and_caps() -> None:
    head = TokenHead(6, 9, bias=True, scale=0.5, softcap=2.0)
    torch.nn.init.normal_(head.weight)
    x = torch.randn(2, 3, 6)
    ctx = Context.over(x, Full())
    logits = QuantizedTokenHead(Int8Matrix(head.weight), Unrounded(), head)(x, ctx)
    torch.testing.assert_close(logits, head(x, ctx), rtol=0, atol=0.05)
    assert logits.abs().max() <= 2.0


def test_an_embedding_looks_rows_up() -> None:
    table = torch.randn(9, 6)
    layer = QuantizedEmbedding(Int8Matrix(table))
    assert layer.num_embeddings == 9
    torch.testing.assert_close(
        layer(torch.tensor([[3, 8]])), table[None, [3, 8]], rtol=0, atol=0.02
    )


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_quantised_recurrence_equals_the_plain_one_with_its_weights(
    kind: type[nn.RNNBase], bias: bool, bits: int
) -> None:
    """In rows, in packed sequences of several lengths, and from a state."""
    kernel = kind(5, 6, bias=bias, batch_first=True).requires_grad_(False)
    matrices = {
        name: Int8Matrix(weight) if bits == 8 else Int4Matrix(round_nearest(weight, 32), d_in)
        for name, weight, d_in in (
            ("weight_ih_l0", kernel.weight_ih_l0, 5),
            ("weight_hh_l0", kernel.weight_hh_l0, 6),
        )
    }
    layer = QuantizedRecurrence(matrices, kernel)
    plain = copy.deepcopy(kernel)
    for name, matrix in matrices.items():
        getattr(plain, name).copy_(matrix.dequantized())
    x = torch.randn(3, 7, 5)
    packed = pack_padded_sequence(x, [2, 7, 4], batch_first=True, enforce_sorted=False)
    state = torch.randn(1, 3, 6)
    begin = (state, state) if kind is nn.LSTM else state
    for args in ((x,), (packed,), (x, begin), (packed, begin)):
        (output, _), (want, _) = layer(*args), plain(*args)
        if not isinstance(output, torch.Tensor):
            output, want = output.data, want.data
        torch.testing.assert_close(output, want, rtol=1e-5, atol=1e-6)
    assert {k: list(w.shape) for k, w in layer.with_weights(_parameter).named_parameters()} == {
        k: list(w.shape) for k, w in kernel.named_parameters()
    }
    assert not any("_kernel" in name for name in layer.state_dict())


def _parameter(matrix: Int8Matrix | Int4Matrix) -> nn.Parameter:
    return nn.Parameter(matrix.dequantized(), False)


# The inputs of quantised layers.


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 4, 5), (0, 5)])
def test_inputs_are_rounded_by_one_scale(shape: tuple[int, ...]) -> None:
    x, matrix = torch.randn(shape), Int8Matrix(torch.randn(7, 5))
    product = RoundedByRange(1.5)(x, matrix)
    scale = torch.tensor(1.5 / 127, dtype=torch.float32).double()
    whole = (x.double() / scale).round().clamp(-127, 127)
    want = whole @ matrix.values.double().T * scale * matrix.scale.double()
    torch.testing.assert_close(product.double(), want, rtol=1e-5, atol=1e-5)


def test_inputs_beyond_the_range_are_clipped() -> None:
    matrix = Int8Matrix(torch.eye(3))
    x = torch.tensor([[5.0, -9.0, 0.5]])
    torch.testing.assert_close(
        RoundedByRange(1.0)(x, matrix), torch.tensor([[1.0, -1.0, 64 / 127]])
    )


def test_weights_only_rounds_no_input() -> None:
    x, matrix = torch.randn(3, 5), Int8Matrix(torch.randn(7, 5))
    exact = x.double() @ matrix.dequantized().double().T
    torch.testing.assert_close(Unrounded()(x, matrix).double(), exact, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(DynamicRounding()(x, matrix).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [Unrounded(), DynamicRounding(), RoundedByRange()])
def test_the_dtype_of_the_input_is_kept(inputs: torch.nn.Module) -> None:
    x, matrix = torch.randn(3, 5).bfloat16(), Int8Matrix(torch.randn(7, 5))
    assert inputs(x, matrix).dtype == torch.bfloat16


def test_configs_build_their_modules() -> None:
    assert isinstance(WeightsOnlyConfig().build(), Unrounded)
    assert isinstance(DynamicConfig().build(), DynamicRounding)
    built = StaticConfig().build(2.0)
    assert isinstance(built, RoundedByRange)
    assert float(built.scale) == pytest.approx(2.0 / 127)
