"""Cores: softmax over unmasked keys, and the difference of two maps."""

import math
from dataclasses import replace

import pytest
import torch

from addnorm.checking.definition.cores import Heads, mixed, softmax
from addnorm.nn.attention import DifferentialCoreConfig, EagerCoreConfig, SinkCoreConfig


def heads(n: int, shared: int, layer: int = 0) -> Heads:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        [torch.randn(3, 2, generator=draw, dtype=torch.float64) for _ in range(size)]
        for size in (n, shared, shared)
    )
    return Heads(
        q=q,
        k=k,
        v=v,
        score=lambda h, s: q[h] @ k[s].T,
        seen=torch.ones(3, 3, dtype=torch.bool).tril(),
        layer=layer,
    )


def test_softmax_over_visible_keys() -> None:
    scores = torch.tensor([[0.0, math.log(3), 1e9]]).double()
    seen = torch.tensor([[True, True, False]])
    assert softmax(scores, seen).tolist() == [pytest.approx([0.25, 0.75, 0])]


def test_heads_share_keys() -> None:
    assert [heads(4, 2).shared(h) for h in range(4)] == [0, 0, 1, 1]
    four = heads(4, 2)
    found = mixed(EagerCoreConfig(), {}, four)
    torch.testing.assert_close(found[2][0], four.v[1][0])  # the first query sees itself alone
    assert torch.equal(found[1], mixed(None, {}, four)[1])


def test_differential_takes_one_map_from_the_other() -> None:
    zeros = torch.zeros(2).double()
    weights = {f"lambda_{name}": zeros for name in ("q1", "k1", "q2", "k2")}
    weights["norm.weight"] = torch.ones(4).double()
    given = heads(4, 2)
    found = mixed(DifferentialCoreConfig(), weights, given)
    start = 0.2  # λ of the first layer: 0.8 - 0.6
    values = torch.cat([given.v[0][0], given.v[1][0]])
    taken = (1 - start) * values
    size = (taken.square().mean() + 1e-5).sqrt()
    expected = taken / size * (1 - start)
    torch.testing.assert_close(torch.cat([found[2][0], found[3][0]]), expected)
    deeper = mixed(DifferentialCoreConfig(), weights, heads(4, 2, layer=3))
    assert not torch.allclose(found[0], deeper[0])


def test_a_sink_takes_its_share_of_every_row() -> None:
    """The first query sees one key of score ln 3: with a sink of ln 5 its weight is 3 / (3 + 5)."""
    given = heads(2, 1)
    log_3 = replace(given, score=lambda _h, _s: torch.full((3, 3), math.log(3)).double())
    sinks = {"sinks": torch.tensor([5.0, 1.0]).double().log()}
    first, second = mixed(SinkCoreConfig(), sinks, log_3)
    torch.testing.assert_close(first[0], given.v[0][0] * 3 / 8)
    torch.testing.assert_close(second[2], given.v[0].sum(0) * 3 / 10)
