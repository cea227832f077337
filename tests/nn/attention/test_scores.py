"""Scores against plain loops in float64, and the effect of the scale."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.contracts import (
    SCORE_RECORDS,
    SOFTMAX_CORES,
    check_gradients,
    check_module,
    check_records,
    context,
    named,
    started,
)
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.attention import AttentionConfig, ScoreConfig
from addnorm.nn.attention.core import EagerCore, EagerCoreConfig, SDPACore, SDPACoreConfig
from addnorm.nn.attention.scores import (
    Additive,
    AdditiveConfig,
    DotProduct,
    ScaledDotConfig,
    is_fused,
)
from addnorm.nn.masks import Causal
from addnorm.nn.positions import NoPosition

HEADS, WIDTH = 3, 4


def formula(config: ScoreConfig, score: DotProduct | Additive, q: Tensor, k: Tensor) -> Tensor:
    """One pair of vectors of one head at a time, in float64."""
    out = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in out.shape)).tolist():
        query, key = q[b, h, i].double(), k[b, h, j].double()
        match config.kind:
            case "scaled_dot":
                value = query.dot(key) * (config.factor or 1 / math.sqrt(len(key)))
                if config.softcap is not None:
                    value = config.softcap * torch.tanh(value / config.softcap)
            case "dot":
                value = query.dot(key)
            case "bilinear":
                value = key @ score.weight[h].double() @ query
            case "additive":
                # A vector times a matrix on the right is the paper's W k with W transposed.
                hidden = key @ score.key[h].double() + query @ score.query[h].double()
                value = score.vector[h, :, 0].double().dot(hidden.tanh())
        out[b, h, i, j] = value
    return out


def test_every_score_has_a_record() -> None:
    check_records(ScoreConfig, SCORE_RECORDS)


@pytest.mark.parametrize("config", named(SCORE_RECORDS))
def test_contract(config: ScoreConfig) -> None:
    q, k = torch.randn(2, HEADS, 3, WIDTH), torch.randn(2, HEADS, 5, WIDTH)
    check_module(
        lambda: config.build(HEADS, WIDTH),
        lambda m, dtype: m(q.to(dtype).requires_grad_(), k.to(dtype)),
    )


@pytest.mark.parametrize("config", named(SCORE_RECORDS))
def test_equals_the_formula(config: ScoreConfig) -> None:
    q, k = torch.randn(2, HEADS, 3, WIDTH).double(), torch.randn(2, HEADS, 5, WIDTH).double()
    score = started(config.build(HEADS, WIDTH)).double()
    assert_close(score(q, k), formula(config, score, q, k), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", named(SCORE_RECORDS))
def test_gradients(config: ScoreConfig) -> None:
    q, k = torch.randn(1, 2, 2, 3), torch.randn(1, 2, 3, 3)
    check_gradients(config.build(2, 3), lambda m, q, k: m(q, k), q, k, twice=True)


@pytest.mark.parametrize("config", named([c for c in SCORE_RECORDS if is_fused(c)]))
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_fused_and_eager_cores_agree(config: ScoreConfig, kv_heads: int) -> None:
    layers = []
    for core in SOFTMAX_CORES:
        torch.manual_seed(0)
        attention = AttentionConfig(n_heads=4, n_kv_heads=kv_heads, score=config, core=core)
        layers.append(started(attention.build(8, NoPosition(), True)))
    x = torch.randn(2, 5, 8)
    first, *others = layers
    for other in others:
        other.load_state_dict(first.state_dict())
        found = other(x, context(2, 5))
        assert_close(found, first(x, context(2, 5)), rtol=1e-5, atol=1e-5)


def test_additive_scores_choose_the_core_that_can() -> None:
    attention = AttentionConfig(n_heads=2, score=AdditiveConfig())
    assert attention.build(8, NoPosition(), True).core.score.__class__ is Additive
    explicit = AttentionConfig(n_heads=2, score=AdditiveConfig(), core=EagerCoreConfig())
    assert explicit.build(8, NoPosition(), True).core.score.__class__ is Additive


def test_capped_scores_choose_the_core_that_can() -> None:
    attention = AttentionConfig(n_heads=2, score=ScaledDotConfig(softcap=50.0))
    assert isinstance(attention.build(8, NoPosition(), True).core, EagerCore)
    with pytest.raises(ValueError, match="no fused kernel"):
        AttentionConfig(n_heads=2, score=ScaledDotConfig(softcap=50.0), core=SDPACoreConfig())


def test_golden_dot_products() -> None:
    """`[1,2,3]·[4,5,6] = 32`."""
    q = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)
    k = torch.tensor([4.0, 5.0, 6.0]).view(1, 1, 1, 3)
    assert DotProduct(1.0)(q, k).item() == 32.0


def has_a_factor(config: ScoreConfig) -> bool:
    """Whether another factor stands in place of that which keeps the variance."""
    return isinstance(config, ScaledDotConfig) and config.factor is not None


@pytest.mark.parametrize("d", [4, 64, 256])
@pytest.mark.parametrize("config", named([c for c in SCORE_RECORDS if not has_a_factor(c)]))
def test_variance_of_the_scores_of_unit_normals(config: ScoreConfig, d: int) -> None:
    """That of a dot product is d; scaled, and as bilinear scores start, it is 1."""
    q, k = torch.randn(2, 1, 1, 400, d).double()
    variance = config.build(1, d).double()(q, k).var().item()
    expected = {"dot": d, "scaled_dot": 1, "bilinear": 1}
    if config.kind in expected:
        loose = d == 4 and config.kind == "bilinear"  # sixteen numbers draw the weight
        assert variance == pytest.approx(expected[config.kind], rel=0.9 if loose else 0.15)
    else:
        assert 0.05 < variance < 4.0  # tanh bounds every term, whatever the width


class Cubed(DotProduct):
    def forward(self, q: Any, k: Any) -> Any:
        return super().forward(q, k) ** 3


@dataclass(frozen=True)
class CubedConfig(ScaledDotConfig):
    def build(self, n_heads: int, d_head: int) -> Cubed:
        return Cubed(d_head**-0.5)


def test_a_subclass_of_a_score_of_ours_is_computed_by_itself() -> None:
    attention = AttentionConfig(n_heads=2, score=CubedConfig()).build(8, NoPosition(), True)
    assert isinstance(attention.core, EagerCore)
    with pytest.raises(ValueError, match="fused"):
        SDPACore(Cubed(0.5))(*[torch.randn(1, 2, 3, 4)] * 3, Causal())
