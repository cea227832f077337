"""Tiled attention: equal results and gradients, in memory and time linear in the length."""

from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import SOFTMAX_CORES, build_core, named
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn import masks
from addnorm.nn.attention import CoreConfig, tiles
from addnorm.nn.attention.core import EagerCore, EagerCoreConfig, SDPACoreConfig
from addnorm.nn.attention.kernels import dot_product_attention
from addnorm.nn.attention.scores import Additive, DotProduct
from addnorm.nn.masks import Blocks, Causal, Dense, Full, Mask, Padding, Segments, Tiled, Window


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that short sequences fall into many tiles."""
    monkeypatch.setattr(masks, "DENSE_LIMIT", 60)
    monkeypatch.setattr(tiles, "DENSE_LIMIT", 60)
    monkeypatch.setattr(masks, "TILE", 2)
    monkeypatch.setattr(tiles, "TILE", 2)


VALID = torch.ones(2, 23, dtype=torch.bool)
VALID[0, :4] = VALID[1, 18:] = False
MASKS: dict[str, Mask] = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Window(3),
    "both sides": Window(2),
    "padding": Causal() & Padding(VALID),
    "padded window": Causal() & Window(4) & Padding(VALID),
    "segments": Causal() & Segments((torch.arange(23) // 7).expand(2, -1)),
    "blocks": Causal() & Blocks(4, 1, 1).at(torch.arange(23)[None]),
}


def bias_of(table: Tensor) -> tiles.Bias:
    return lambda rows, keys: table[:, :, rows, keys]


def at_once(core: Any, *inputs: Any) -> Tensor:
    """What a core computes in one tile, whatever the limits say."""
    if isinstance(core, EagerCore):
        return core.attend(*inputs)
    return dot_product_attention(*inputs, scale=core.score.scale)


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("new", [23, 5, 1])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_equals_all_at_once(core: CoreConfig, name: str, new: int, biased: bool) -> None:
    slots, mask = torch.arange(23), MASKS[name]
    leaves = [
        torch.randn(2, 4, new, 6, dtype=torch.float64),
        *torch.randn(2, 2, 2, 23, 6, dtype=torch.float64),
        torch.randn(1, 4, new, 23, dtype=torch.float64),
    ]
    module = build_core(core, 0.0, DotProduct(0.4))
    whole = Dense(mask.dense(slots[23 - new :], slots, 2))
    form = mask.on(slots[23 - new :], slots, 2)

    def run(attend: str) -> list[Tensor]:
        q, k, v, table = (x.clone().requires_grad_() for x in leaves)
        if attend == "whole":
            out = at_once(module, q, k, v, whole, table if biased else None)
        else:
            out = module(q, k, v, form, bias_of(table) if biased else None)
        out.sin().sum().backward()
        return [out, *(x.grad for x in (q, k, v, table) if x.grad is not None)]

    for got, expected in zip(run("tiles"), run("whole"), strict=True):
        assert_close(got, expected, rtol=0, atol=1e-12)


def test_narrow_and_large_masks_are_tiled() -> None:
    slots = torch.arange(40)
    assert isinstance((Causal() & Window(2)).on(slots, slots, 1), Tiled)
    assert isinstance(Padding(torch.ones(1, 40, dtype=torch.bool)).on(slots, slots, 1), Tiled)
    assert isinstance(Causal().on(slots, slots, 1), Causal)
    assert isinstance((Causal() & Window(2)).on(slots[:5], slots[:5], 1), Dense)


@settings(max_examples=60)
@given(
    n_kv=st.integers(1, 40),
    n_q=st.integers(1, 40),
    back=st.sampled_from([0, 1, 3, inf]),
    ahead=st.sampled_from([0, 2, inf]),
)
def test_places_cover_every_pair_in_reach_once(
    n_kv: int, n_q: int, back: float, ahead: float
) -> None:
    n_q = min(n_q, n_kv)
    q, k = torch.zeros(1, 1, n_q, 1), torch.zeros(1, 1, n_kv, 1)

    class Reaching(Full):
        reach = back, ahead

    seen = torch.zeros(n_q, n_kv)
    for rows, keys in tiles._places(q, k, Reaching(), 1):
        seen[rows, keys] += 1
    i, j = torch.arange(n_q)[:, None] + n_kv - n_q, torch.arange(n_kv)
    assert seen.max() <= 1
    assert bool((seen[(j >= i - back) & (j <= i + ahead)] == 1).all())


def test_dropout_is_the_same_on_the_way_back() -> None:
    """Computed again for the gradient, a tile drops what it dropped before."""
    slots = torch.arange(23)
    form = (Causal() & Window(3)).on(slots, slots, 1)
    v = torch.ones(1, 1, 23, 4, requires_grad=True)
    q = torch.zeros(1, 1, 23, 4)
    out = build_core(EagerCoreConfig(), 0.5, DotProduct(1.0))(q, q, v, form)
    out.sum().backward()
    assert v.grad is not None
    assert_close(v.grad.sum(), out.detach().sum())  # both sum the very weights that were kept


def test_additive_scores_are_tiled_by_their_width() -> None:
    core = build_core(EagerCoreConfig(), 0.0, Additive(2, 8).double())
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    assert_close(core(q, k, v, Causal()), core.attend(q, k, v, Causal(), None))
    assert tiles.is_tiled(q, k, Causal(), None, 8)


def test_a_window_is_never_evaluated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs looked at grow with the length, not with its square."""
    looked: list[int] = []
    dense = Mask.dense

    def counted(self: Mask, q: Tensor, kv: Tensor, batch: int) -> Tensor:
        looked.append(len(q) * len(kv))
        return dense(self, q, kv, batch)

    monkeypatch.setattr(Mask, "dense", counted)
    core = build_core(SDPACoreConfig(), 0.0, DotProduct(1.0))
    totals = []
    for length in (64, 128, 256):
        looked.clear()
        slots, x = torch.arange(length), torch.randn(1, 1, length, 4)
        core(x, x, x, (Causal() & Window(4)).on(slots, slots, 1))
        totals.append(sum(looked))
    assert totals[1] < 2.1 * totals[0]
    assert totals[2] < 2.1 * totals[1]
