"""Cross-layer attention: a row by hand, and what it reads."""

import math
from dataclasses import replace

import pytest
import torch
from tests.contracts import context
from torch import Tensor

from addnorm.errors import InputError
from addnorm.nn.attention import AttentionConfig, CrossLayerAttention
from addnorm.nn.cache import PassCache
from addnorm.nn.masks import Causal
from addnorm.nn.positions import (
    DisentangledConfig,
    NoPosition,
    RotaryConfig,
)
from addnorm.nn.positions.position import BuildContext, Position

READS = AttentionConfig(n_heads=1, bias=False, kv_layers_back=1)


def built(
    config: AttentionConfig, d_model: int, position: Position | None = None
) -> CrossLayerAttention:
    module = config.build(d_model, position or NoPosition(), True, 3)
    assert isinstance(module, CrossLayerAttention)
    return module


def read(k: Tensor, v: Tensor) -> PassCache:
    cache = PassCache()
    cache.append(k, v)
    return cache


def test_a_row_by_hand() -> None:
    """One head of one feature: the query 2 x meets keys 1 and 3, whose values are 10 and 20."""
    module = built(READS, 1).double()
    module.q_proj.weight.data.fill_(2.0)
    module.out_proj.weight.data.fill_(0.5)
    k, v = (torch.tensor(row).double().view(1, 1, 2, 1) for row in ([1.0, 3.0], [10.0, 20.0]))
    ctx = replace(context(1, 2, Causal()), earlier=read(k, v))
    x = torch.tensor([[[7.0], [-1.0]]]).double()
    weights = [math.exp(-2 * 1), math.exp(-2 * 3)]
    second = 0.5 * (weights[0] * 10 + weights[1] * 20) / sum(weights)
    assert module(x, ctx).flatten().tolist() == pytest.approx([0.5 * 10, second])


def test_its_queries_are_rotated_and_normalised_as_those_of_attention() -> None:
    for after in ("projection", "rotation"):
        config = AttentionConfig(
            n_heads=4, n_kv_heads=2, qk_norm="rmsnorm", qk_norm_after=after, bias=False
        )  # pyright: ignore[reportArgumentType]
        sizes = BuildContext(d_model=16, max_len=9, n_heads=4, d_head=4, causal=True, scale=0.5)
        rotary = RotaryConfig().build(sizes)
        whole = config.build(16, rotary, True, 3)
        module = built(replace(config, kv_layers_back=2), 16, rotary)
        module.load_state_dict(whole.state_dict(), strict=False)
        x, ctx = torch.randn(2, 5, 16), context(2, 5, Causal())
        (_, k), v = whole.rotated(whole.queries(x), whole.keys(x), ctx), whole.keys_values(x)[1]
        got = module(x, replace(ctx, earlier=read(k, v)))
        torch.testing.assert_close(got, whole(x, ctx))


def test_it_has_no_keys_and_stores_none() -> None:
    module = built(READS, 4)
    assert module.reads == 2
    assert {name for name, _ in module.named_parameters()} == {"q_proj.weight", "out_proj.weight"}


def test_what_it_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="cross-layer attention reads an earlier layer: run it in"):
        built(READS, 4)(torch.randn(1, 3, 4), context(1, 3))
    with pytest.raises(ValueError, match="value_residual changes a layer's own values, and with"):
        AttentionConfig(kv_layers_back=1, value_residual="learned")
    sizes = BuildContext(d_model=8, max_len=9, n_heads=2, d_head=4, causal=False, scale=0.5)
    position = DisentangledConfig().build(sizes).in_layer(1)
    with pytest.raises(
        InputError, match="read the projections of keys, and a layer with kv_layers"
    ):
        AttentionConfig(n_heads=2, kv_layers_back=1).build(8, position, False, 1)
