"""Norms of queries, keys and values: over all heads, after the rotation, and of values."""

import torch
from tests.contracts import build_context, context, started
from torch.testing import assert_close

from addnorm.nn.attention import AttentionConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.positions import NoPosition, RotaryConfig


def test_a_norm_over_all_heads_is_one_norm_of_the_row() -> None:
    config = AttentionConfig(
        n_heads=4, n_kv_heads=2, qk_norm=LayerNormConfig(), qk_norm_over="heads"
    )
    attention = started(config.build(8, NoPosition(), True))
    x = torch.randn(2, 3, 8)
    row, norm = attention.q_proj(x), attention.q_norm.norm
    expected = (row - row.mean(-1, keepdim=True)) / row.std(-1, keepdim=True, correction=0)
    expected = expected * norm.weight + norm.bias
    assert_close(attention.queries(x).transpose(1, 2).flatten(-2), expected, rtol=1e-4, atol=1e-4)
    assert attention.k_norm.norm.weight.shape == (4,)


def test_norms_of_values_and_of_rotated_heads() -> None:
    norm = RMSNormConfig(eps=1e-12)
    config = AttentionConfig(n_heads=2, qk_norm=norm, qk_norm_after="rotation", v_norm=norm)
    attention = config.build(8, RotaryConfig().build(build_context(4, 2)), True)
    x = torch.randn(2, 3, 8)
    _, v = attention.keys_values(x)
    q, k = attention.rotated(attention.queries(x), attention.keys(x), context(2, 3))
    for heads in (q, k, v):
        assert_close(heads.square().mean(-1), torch.ones(2, 2, 3))
    cross = config.build_cross(8)  # nothing is rotated there
    assert_close(cross.keys(x).square().mean(-1), torch.ones(2, 2, 3))
