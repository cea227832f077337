"""Differential attention: the paper's equations, pair by pair, and extensions."""

import math

import pytest
import torch
from tests.contracts import check_module, context, started
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.nn.attention import (
    AttentionConfig,
    DifferentialCore,
    DifferentialCoreConfig,
    EagerCore,
    HeadShape,
)
from addnorm.nn.attention.differential import lambda_init
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.masks import Causal, Full
from addnorm.nn.positions import ALiBi, NoPosition
from addnorm.nn.positions.position import Bias

EVERYTHING = slice(None)


def paper(
    core: DifferentialCore, q: Tensor, k: Tensor, v: Tensor, layer: int, bias: Bias | None = None
) -> Tensor:
    """Ye et al. 2024, eq. 1–3, one pair of heads at a time, causal, in float64."""
    batch, heads, n, d = q.shape
    sharing = heads // k.shape[1]
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    lam = (
        torch.exp(core.lambda_q1 @ core.lambda_k1)
        - torch.exp(core.lambda_q2 @ core.lambda_k2)
        + start
    )
    hidden = torch.ones(n, n).triu(1).bool()
    out = torch.zeros(batch, n, heads * d, dtype=torch.float64)
    for b in range(batch):
        for pair in range(heads // 2):
            shared = pair // sharing
            maps = []
            for which in (0, 1):
                scores = q[b, 2 * pair + which] @ k[b, 2 * shared + which].T / math.sqrt(d)
                if bias is not None:
                    scores = scores + bias(EVERYTHING, EVERYTHING)[0, 2 * pair + which]
                maps.append(scores.masked_fill(hidden, -math.inf).softmax(-1))
            values = torch.cat([v[b, 2 * shared], v[b, 2 * shared + 1]], dim=-1)
            mixed = (maps[0] - lam * maps[1]) @ values
            square = mixed.square().mean(-1, keepdim=True)
            normed = core.norm.weight * mixed / torch.sqrt(square + 1e-5)
            out[b, :, 2 * d * pair : 2 * d * (pair + 1)] = (1 - start) * normed
    return out


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_paper(kv_heads: int, biased: bool) -> None:
    core = started(DifferentialCore(DotProduct(3**-0.5), 3, layer=2)).double()
    q, k, v = (torch.randn(2, h, 5, 3).double() for h in (4, kv_heads, kv_heads))
    bias = ALiBi(4).score_bias(q, context(2, 5)) if biased else None
    got = core(q, k, v, Causal(), bias).transpose(1, 2).flatten(2)
    assert_close(got, paper(core, q, k, v, 2, bias))


def test_lambda_starts_with_the_depth_of_the_layer() -> None:
    """0.2 in the first layer, towards 0.8 in deep ones (§2.1)."""
    assert lambda_init(0) == pytest.approx(0.2)
    assert lambda_init(100) == pytest.approx(0.8)
    model = DecoderConfig(
        d_model=8, n_layers=3, attention=AttentionConfig(n_heads=2, core=DifferentialCoreConfig())
    ).build(5)
    starts = [block.attention.core.lambda_init for block in model.stack.blocks]
    assert starts == [lambda_init(0), lambda_init(1), lambda_init(2)]


def test_without_lambda_it_is_attention_with_a_norm() -> None:
    """`λ = 0` leaves the first map of each pair, its values as wide as both heads."""
    core = DifferentialCore(DotProduct(0.5), 4).double()
    for vector in (core.lambda_q1, core.lambda_q2):
        vector.data.zero_()  # both exponentials are one
    core.lambda_init = 0.0
    q, k, v = (torch.randn(1, 2, 6, 4).double() for _ in range(3))
    values = torch.cat([v[:, :1], v[:, 1:]], dim=-1)
    plain = EagerCore(DotProduct(0.5))(q[:, :1], k[:, :1], values, Full())
    got = core(q, k, v, Full()).transpose(1, 2).flatten(2)
    assert_close(got, core.norm(plain)[:, 0])


def test_its_weights_are_those_of_both_maps() -> None:
    core = started(DifferentialCore(DotProduct(0.5), 4, layer=1)).double()
    q, k, v = (torch.randn(2, 4, 6, 4).double() for _ in range(3))
    weights = core.weights(q, k, Causal())
    assert weights.shape == (2, 4, 6, 6)
    assert_close(weights.sum(-1), torch.ones(2, 4, 6).double())
    values = torch.cat([v[:, ::2], v[:, 1::2]], dim=-1)
    mixed = (weights[:, ::2] - core.strength * weights[:, 1::2]) @ values
    normed = core.norm(mixed) * (1 - core.lambda_init)
    got = core(q, k, v, Causal()).unflatten(1, (2, 2)).transpose(2, 3).flatten(3)
    assert_close(got, normed)


def test_contract() -> None:
    q, kv = torch.randn(2, 4, 3, 2), torch.randn(2, 2, 3, 2)
    heads = HeadShape(4, 2, 2)
    check_module(
        lambda: DifferentialCoreConfig().build(heads, DotProduct(0.7), 0.0, 1),
        lambda m, dtype: m(q.to(dtype), kv.to(dtype), kv.to(dtype).flip(-1), Causal()),
    )


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(3, 3), (4, 1)])
def test_heads_come_in_pairs(n_heads: int, n_kv_heads: int) -> None:
    attention = AttentionConfig(
        n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=4, core=DifferentialCoreConfig()
    )
    with pytest.raises(ValueError, match="pairs heads"):
        attention.build(8, NoPosition(), True)
    with pytest.raises(ValueError, match=f"n_heads = {n_heads} and n_kv_heads = {n_kv_heads}"):
        DecoderConfig(d_model=8, n_layers=1, attention=attention)


def test_only_dot_products_are_subtracted() -> None:
    with pytest.raises(ValueError, match="no fused kernel"):
        AttentionConfig(score="additive", core="differential")
