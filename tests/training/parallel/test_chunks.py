"""Attention of a chunk to the keys that it may attend to is that to all keys."""

from contextlib import nullcontext
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.checking.long_texts import small_limits
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full, Prefix, Window
from addnorm.nn.positions import ALiBi
from addnorm.training.parallel import chunks

PATTERNS = (Full(), Window(2))
EAGER = EagerCore(DotProduct(0.5))
CORES = (SDPACore(), EAGER)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.randoms(), st.sampled_from(CORES), st.booleans(), st.booleans())
def test_chunks_compute_the_same(
    n: int, random: Random, core: torch.nn.Module, tiled: bool, biased: bool
) -> None:
    """With padding, segments of a prefix, and queries that may attend to nothing."""
    valid = torch.tensor([[random.random() < 0.7 for _ in range(n)] for _ in range(2)])
    mask = random.choice([Causal(), Prefix(torch.tensor([1, 0]))])
    places = random.sample(range(n), n)
    own = random.randint(1, n - 1)
    slots, others = torch.tensor(places[:own]), torch.tensor(places[own:])
    ctx = Context.over(torch.zeros(2, n), mask, valid=valid).part(slots, others)
    with small_limits() if tiled else nullcontext():
        ctx = ctx.restrict(random.choice(PATTERNS))
    draw = torch.Generator().manual_seed(0)
    shapes = (2, 2, own, 4), (2, 2, n, 4), (2, 2, n, 4)
    q, k, v = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    bias = ALiBi(2).score_bias(q, ctx) if biased else None
    first = random.randint(0, own)
    rows = [part for part in (slice(0, first), slice(first, own)) if part.start < part.stop]

    def computed(attend: chunks.Core) -> list[Tensor]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        y = attend(*inputs, ctx.mask, bias)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "FEWEST", 0)
        ours = computed(chunks.by_chunk(core, lambda: rows))
    for a, b in zip(ours, computed(core), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_keys_out_of_reach_are_left_out() -> None:
    """A chunk at the head of a text and one at its tail, as the first of two processes has them."""
    n = 8
    slots, others = torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])
    ctx = Context.over(torch.zeros(1, n), Causal()).part(slots, others).restrict(Full())
    pairs = list[int]()

    def core(q: Tensor, k: Tensor, v: Tensor, mask: object, bias: object) -> Tensor:
        pairs.append(q.shape[2] * k.shape[2])
        return q

    q, k = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, n, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "FEWEST", 0)
        attend = chunks.by_chunk(core, lambda: [slice(0, 2), slice(2, 4)])
        assert attend(q, k, k, ctx.mask, None).shape == q.shape
    assert pairs == [2 * 2, 2 * 8]
