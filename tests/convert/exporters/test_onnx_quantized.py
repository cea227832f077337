"""Layers in ONNX's form compute what the quantised layers do, before any graph is traced."""

import copy

import pytest
import torch

from addnorm.convert.exporters.onnx_quantized import (
    DequantizedMatrix,
    Product,
    place_dequantized,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.quantize import Int4Config, Int8Config, StaticConfig, WeightsOnlyConfig, quantize
from addnorm.quantize.activations import RoundedByRange, RoundedByRow, Unrounded
from addnorm.quantize.int8 import Int8Matrix

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
    assert Product(RoundedByRow()).scale is None  # ONNX leaves these inputs as they are


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


def test_int4_is_refused() -> None:
    with pytest.raises(InputError, match="ONNX export has no int4"):
        place_dequantized(quantize(CONFIG.build(9), Int4Config()))
