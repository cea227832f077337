"""Quantised layers: biases, smoothing, scale and cap as in the layers they stand for."""

import torch

from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full
from addnorm.quantize.activations import Unrounded
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import QuantizedEmbedding, QuantizedLinear, QuantizedTokenHead


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
    found = QuantizedTokenHead(Int8Matrix(head.weight), Unrounded(), head)(x, ctx)
    torch.testing.assert_close(found, head(x, ctx), rtol=0, atol=0.05)
    assert found.abs().max() <= 2.0


def test_an_embedding_looks_rows_up() -> None:
    table = torch.randn(9, 6)
    layer = QuantizedEmbedding(Int8Matrix(table))
    assert layer.num_embeddings == 9
    torch.testing.assert_close(
        layer(torch.tensor([[3, 8]])), table[None, [3, 8]], rtol=0, atol=0.02
    )
