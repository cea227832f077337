"""Attention sinks: the equation by hand and by heads, every kernel, and empty rows."""

import math

import pytest
import torch
from tests.contracts import check_module, context, started
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.attention import (
    AttentionConfig,
    EagerCore,
    HeadShape,
    SinkCore,
    SinkCoreConfig,
    kernels,
)
from addnorm.nn.attention.kernels import dot_product_attention
from addnorm.nn.attention.scores import AdditiveConfig, DotProduct
from addnorm.nn.masks import Causal, Dense, Evaluated, Full
from addnorm.nn.positions import ALiBi


def drawn(n_q: int, n_kv: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Queries of four heads, keys and values of two, and a sink for each query head."""
    shapes = (2, 4, n_q, 3), (2, 2, n_kv, 3), (2, 2, n_kv, 3), (4,)
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def by_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Evaluated, scale: float
) -> tuple[Tensor, Tensor]:
    """Plain attention and the factor `σ(lse − s)`; both are zero where a query sees nothing."""
    plain = EagerCore(DotProduct(scale))(q, k, v, mask)
    scores = q @ k.repeat_interleave(2, 1).mT * scale
    allowed = kernels.allowed_of(mask, q, k)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
    return plain, torch.sigmoid(scores.logsumexp(-1) - sinks[:, None])[..., None]


def test_equals_a_row_by_hand() -> None:
    """Scores ln 2 and ln 3, a sink of ln 5: weights 2/10 and 3/10, the rest is the sink's."""
    core = SinkCore(DotProduct(1.0), 1).double()
    core.sinks.data.fill_(math.log(5))
    q = torch.ones(1, 1, 1, 1).double()
    k = torch.tensor([2.0, 3.0]).double().log().view(1, 1, 2, 1)
    v = torch.tensor([10.0, 100.0]).double().view(1, 1, 2, 1)
    assert core(q, k, v, Full()).item() == pytest.approx(0.2 * 10 + 0.3 * 100)
    assert_close(core.weights(q, k, Full()).flatten(), torch.tensor([0.2, 0.3]).double())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["full", "causal", "dense"])
def test_is_attention_times_the_sigmoid_of_lse_minus_sink(
    fused: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "prefers_products", lambda q, k: not fused)
    q, k, v, sinks = drawn(5, 5 if kind == "causal" else 7)
    allowed = torch.rand(2, 1, 5, 7) < 0.5
    allowed[0, 0, 2] = False
    mask = {"full": Full(), "causal": Causal(), "dense": Dense(allowed)}[kind]
    inputs = [x.requires_grad_() for x in (q, k, v, sinks)]
    y = dot_product_attention(q, k, v, mask, scale=0.4, sinks=sinks)
    plain, factor = by_lse(q, k, v, sinks, mask, 0.4)
    assert_close(y, plain * factor)
    gradient = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, inputs, gradient),
        torch.autograd.grad(plain * factor, inputs, gradient),
        strict=True,
    ):
        assert_close(ours, theirs.nan_to_num())


@pytest.mark.parametrize("n_q", [1, 6])
def test_a_bias_and_a_custom_scale_are_those_of_the_scores(n_q: int) -> None:
    q, k, v, _ = drawn(n_q, 6)
    core = SinkCore(DotProduct(0.7), 4).double()
    started(core)
    bias = ALiBi(4).score_bias(q, context(2, n_q, past=6 - n_q))
    mask = Causal() if n_q == 6 else Full()
    weights = core.weights(q, k, mask, bias)
    assert (weights.sum(-1) < 1).all()
    assert_close(core(q, k, v, mask, bias), weights @ v.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_stay_near_the_definition(dtype: torch.dtype) -> None:
    q, k, v, sinks = drawn(40, 40)
    expected = dot_product_attention(q, k, v, Causal(), sinks=sinks)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    y = dot_product_attention(q, k, v, Causal(), sinks=sinks.to(dtype))
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


def test_without_sinks_it_is_plain_attention() -> None:
    q, k, v, _ = drawn(4, 4)
    core = SinkCore(DotProduct(0.5), 4).double()
    core.sinks.data.fill_(-1e4)
    assert_close(core(q, k, v, Causal()), EagerCore(DotProduct(0.5))(q, k, v, Causal()))


def test_contract() -> None:
    q, kv = torch.randn(2, 4, 3, 2), torch.randn(2, 2, 3, 2)
    check_module(
        lambda: SinkCoreConfig().build(HeadShape(4, 2, 2), DotProduct(0.7), 0.0, 1),
        lambda m, dtype: m(q.to(dtype), kv.to(dtype), kv.to(dtype).flip(-1), Causal()),
    )


def test_rejects_scores_that_no_fused_kernel_computes() -> None:
    with pytest.raises(ValueError, match="no fused kernel"):
        AttentionConfig(score=AdditiveConfig(), core=SinkCoreConfig())
