"""ALiBi and segment memory against x-transformers, with the same weights."""

import warnings

import pytest
import torch
from tests.contracts import context
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.attention import AttentionConfig, SelfAttention
from addnorm.nn.cache import SegmentMemory
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full
from addnorm.nn.positions import ALiBiConfig, NoPosition, Position
from addnorm.nn.positions.position import BuildContext

pytestmark = pytest.mark.parity
WIDTH = 24


@pytest.fixture(scope="module")
def theirs() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations are its own
        return pytest.importorskip("x_transformers.x_transformers")


def alibi(heads: int, *, causal: bool = True) -> Position:
    d_head = WIDTH // heads
    build_context = BuildContext(
        d_model=WIDTH, max_len=1, n_heads=heads, d_head=d_head, causal=causal, scale=d_head**-0.5
    )
    return ALiBiConfig().build(build_context)


def ours(module: torch.nn.Module, heads: int, position: Position) -> SelfAttention:
    """Our attention with the weights of theirs."""
    attention = AttentionConfig(n_heads=heads, bias=False).build(WIDTH, position, True)
    names = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "out_proj"}
    weights = {
        f"{names[name.partition('.')[0]]}.weight": value
        for name, value in module.state_dict().items()
    }
    attention.load_state_dict(weights, strict=True)
    return attention.double()


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12])
def test_alibi_slopes(theirs: object, heads: int) -> None:
    bias = theirs.AlibiPositionalBias(heads=heads, total_heads=heads)  # type: ignore[attr-defined]
    tile = alibi(heads).score_bias(torch.zeros(1, heads, 4, 2), context(1, 4, past=3))
    assert tile is not None
    assert_close(tile(slice(None), slice(None))[0], bias(4, 7), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [3, 4])
def test_attention_with_alibi(theirs: object, heads: int, causal: bool) -> None:
    module = theirs.Attention(  # type: ignore[attr-defined]
        dim=WIDTH, heads=heads, dim_head=WIDTH // heads, causal=causal
    ).double()
    bias = theirs.AlibiPositionalBias(heads=heads, total_heads=heads).double()  # type: ignore[attr-defined]
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    expected = module(x, attn_bias=bias(7, 7))
    ctx = context(2, 7, Causal() if causal else Full())
    got = ours(module, heads, alibi(heads, causal=causal))(x, ctx)
    assert_close(got, expected, rtol=0, atol=1e-6)  # their softmax runs in float32


def test_memory_of_earlier_segments(theirs: object) -> None:
    module = theirs.Attention(dim=WIDTH, heads=4, dim_head=6, causal=True).double()  # type: ignore[attr-defined]
    first, second = torch.randn(2, 2, 5, WIDTH, dtype=torch.float64).unbind()
    second.requires_grad_()
    expected = module(second, mem=first)
    attention, memory = ours(module, 4, NoPosition()), SegmentMemory(5)
    attention(first, context(2, 5), memory)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    got = attention(second, Context.over(tokens, Causal(), past=5).restrict(Full()), memory)
    assert_close(got, expected, rtol=0, atol=1e-6)
    seed = torch.randn_like(got)
    gradients: list[Tensor] = [torch.autograd.grad(out, second, seed)[0] for out in (got, expected)]
    assert_close(*gradients, rtol=0, atol=1e-6)
