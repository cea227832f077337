"""Layers in ONNX's form compute what the quantised layers do, before any graph is traced."""

import copy

import pytest
import torch

from addnorm.convert.exporters.onnx_quantized import (
    BlockedMatrix,
    DequantizedMatrix,
    Product,
    place_dequantized,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.quantize import (
    Int4Config,
    Int8Config,
    StaticConfig,
    WeightsOnlyConfig,
    dequantize,
    quantize,
)
from addnorm.quantize.int4 import Int4Matrix, round_nearest
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import DynamicRounding, RoundedByRange, Unrounded

CONFIG = DecoderConfig(d_model=32, n_layers=2, attention=AttentionConfig(n_heads=2))
TOKENS = torch.arange(9)[None]


def test_a_matrix_is_the_same() -> None:
    matrix = Int8Matrix(torch.randn(5, 7))
    found = DequantizedMatrix(matrix)
    assert torch.equal(found.dequantized(), matrix.dequantized())
    places = torch.tensor([4, 0, 4])
    assert torch.equal(found.rows(places), matrix.rows(places))


@pytest.mark.parametrize("static", [False, True])
def test_a_product_is_the_same(static: bool) -> None:
    matrix, x = Int8Matrix(torch.randn(5, 7)), torch.randn(3, 7)
    ours = RoundedByRange(1.5) if static else Unrounded()
    found = Product(ours)(x, DequantizedMatrix(matrix))
    torch.testing.assert_close(found, ours(x, matrix), rtol=1e-5, atol=1e-5)
    assert Product(DynamicRounding()).scale is None  # ONNX leaves these inputs as they are


def test_an_unknown_kind_of_input_is_refused() -> None:
    with pytest.raises(InputError, match="ONNX cannot hold Identity"):
        Product(torch.nn.Identity())


@pytest.mark.parametrize("activations", [WeightsOnlyConfig(), StaticConfig()])
def test_a_model_is_the_same(activations: WeightsOnlyConfig | StaticConfig) -> None:
    scheme = Int8Config(activations=activations)
    model = quantize(CONFIG.build(9).eval(), scheme, [{"tokens": TOKENS}])
    placed = copy.deepcopy(model)
    place_dequantized(placed)
    torch.testing.assert_close(placed(TOKENS), model(TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("d_in", "group_size"), [(64, 32), (50, 32), (128, 64)])
def test_a_matrix_of_four_bits_is_the_same(d_in: int, group_size: int) -> None:
    matrix = Int4Matrix(round_nearest(torch.randn(5, d_in), group_size), d_in)
    found, x = BlockedMatrix(matrix), torch.randn(3, d_in)
    assert torch.equal(found.dequantized(), matrix.dequantized())
    assert torch.equal(found.rows(torch.tensor([4, 0])), matrix.rows(torch.tensor([4, 0])))
    assert torch.equal(found.times(x), torch.nn.functional.linear(x, matrix.dequantized()))


def test_a_model_of_four_bits_is_its_numbers_in_float32() -> None:
    model = quantize(CONFIG.build(9).eval(), Int4Config())
    placed, plain = copy.deepcopy(model), dequantize(copy.deepcopy(model))
    place_dequantized(placed)
    torch.testing.assert_close(placed(TOKENS), plain(TOKENS), rtol=1e-5, atol=1e-5)
    tied = [placed.get_submodule(f"{name}.matrix") for name in ("head", "embed.tokens")]
    assert tied[0] is tied[1]  # which is written once


def test_an_unknown_kind_of_matrix_is_refused() -> None:
    model = quantize(CONFIG.build(9), Int4Config())
    model.set_submodule("stack.blocks.1.feedforward.up_proj.matrix", torch.nn.Identity())
    with pytest.raises(InputError, match="ONNX cannot hold Identity: quantise to int8 or int4"):
        place_dequantized(model)
