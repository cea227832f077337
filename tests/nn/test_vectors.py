"""The vector head: its pooling alone, and texts with fewer tokens than a joined pooling takes."""

import pytest
import torch
from tests.contracts import context
from torch import nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.pooling import AttentionPoolingConfig, JoinedPoolingConfig
from addnorm.nn.vectors import VectorHeadConfig

VALID = torch.tensor([[True, True, True, True], [False, True, True, False], [False] * 4])


def test_first_tokens_and_the_mean_of_the_rest() -> None:
    x = torch.randn(3, 4, 2).double()
    head = VectorHeadConfig(pooling=JoinedPoolingConfig(first=1, skipped=1)).build(2, 0)
    found = head(x, context(3, 4, valid=VALID))
    zeros = torch.zeros(2).double()
    expected = [torch.cat([x[0, 0], (x[0, 2] + x[0, 3]) / 2]), torch.cat([x[1, 1], zeros])]
    assert_close(found, torch.stack([*expected, torch.cat([zeros, zeros])]))


def test_padding_takes_no_part() -> None:
    x = torch.randn(3, 4, 2)
    head = VectorHeadConfig(pooling=JoinedPoolingConfig(first=2)).build(2, 0)
    ctx = context(3, 4, valid=VALID)
    dirty = x.masked_fill(~VALID[..., None], float("nan"))
    assert torch.equal(head(dirty, ctx), head(x, ctx))


def test_a_model_without_weights_in_its_head() -> None:
    assert not list(VectorHeadConfig(pooling="first").build(4, 0).parameters())


def test_attention_pooling_is_that_of_torch_and_a_feedforward() -> None:
    """SigLIP's head: `u + FFN(norm(u))`, where a probe attends by torch's own attention."""
    torch.manual_seed(0)
    config = AttentionPoolingConfig(n_heads=3, feedforward=FeedForwardConfig(d_ff=7))
    head = VectorHeadConfig(pooling=config, width=5, bias=True).build(6, 0).double()
    pool, x = head.pool, torch.randn(3, 4, 6).double()
    assert isinstance(pool, nn.Module)
    attention = nn.MultiheadAttention(6, 3, batch_first=True).double()
    weights = dict(pool.named_parameters())
    for kind in ("weight", "bias"):
        parts = [weights[f"{name}_proj.{kind}"] for name in "qkv"]
        getattr(attention, f"in_proj_{kind}").data = torch.cat(parts)
        getattr(attention.out_proj, kind).data = weights[f"out_proj.{kind}"]
    probe = weights["probe"].expand(2, 1, 6)
    u = attention(probe, x[:2], x[:2], key_padding_mask=~VALID[:2])[0][:, 0]
    expected = head.proj(u + pool.feedforward(pool.norm(u)))  # type: ignore[misc, operator]
    found = head(x, context(3, 4, valid=VALID))
    assert_close(found[:2], expected)
    assert_close(found[2], head.proj.bias)  # type: ignore[union-attr]


def test_a_number_of_heads_that_does_not_divide_the_width() -> None:
    head = VectorHeadConfig(pooling=AttentionPoolingConfig(n_heads=4))
    with pytest.raises(InputError, match=r"n_heads = 4 does not divide d_model = 6: .* is 3"):
        head.build(6, 0)


def test_a_bias_without_a_map() -> None:
    with pytest.raises(ValueError, match="give width with it"):
        VectorHeadConfig(bias=True)
