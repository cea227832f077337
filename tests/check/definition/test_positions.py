"""Position schemes: the numbers of the papers, and that scores see offsets alone."""

import math
from types import SimpleNamespace

import pytest
import torch

from addnorm.check.definition.positions import (
    alibi_slopes,
    biases,
    content_bias,
    distance_scores,
    embedded,
    rotated,
    sinusoid,
    t5_bucket,
)
from addnorm.check.definition.texts import Texts

ROTARY = SimpleNamespace(kind="rotary", theta=100.0, layout="half", fraction=1.0, scaling=None)


def test_sinusoids() -> None:
    assert sinusoid(0, 4) == (0, 1, 0, 1)
    assert sinusoid(1, 4) == pytest.approx((0.8415, 0.5403, 0.0100, 0.99995), abs=5e-5)
    assert len(sinusoid(3, 5)) == 5


def test_what_is_added_to_embeddings() -> None:
    waves = SimpleNamespace(kind="sinusoidal", theta=10000.0)
    x = torch.tensor([[0.5, 1.0, 0.3, 0.7], [0.8, 0.6, 0.4, 0.9]]).double()
    expected = [[0.5, 2.0, 0.3, 1.7], [1.6415, 1.1403, 0.4100, 1.89995]]
    torch.testing.assert_close(
        embedded(waves, {}, x, [0, 1]), torch.tensor(expected).double(), atol=5e-5, rtol=0
    )
    table = {"table.weight": torch.eye(4).double()}
    learned = embedded(SimpleNamespace(kind="learned"), table, torch.zeros_like(x), [2, 0])
    assert learned.argmax(1).tolist() == [2, 0]
    assert embedded(SimpleNamespace(kind="none"), {}, x, [0, 1]) is x


@pytest.mark.parametrize(("layout", "pairs"), [("half", (0, 2)), ("interleaved", (0, 1))])
def test_the_first_pair_turns_by_one_radian_a_place(layout: str, pairs: tuple[int, int]) -> None:
    config = SimpleNamespace(**{**vars(ROTARY), "layout": layout})
    x = torch.zeros(3, 4).double()
    x[:, pairs[0]] = 1.0
    turned = rotated(config, x, Texts.of([3]))
    assert turned[:, pairs[0]].tolist() == pytest.approx([1, math.cos(1), math.cos(2)])
    assert turned[:, pairs[1]].tolist() == pytest.approx([0, math.sin(1), math.sin(2)])


def test_rotary_scores_see_the_offset_alone() -> None:
    q, k = torch.randn(2, 4).double()
    rows = Texts.of([6])
    queries, keys = (rotated(ROTARY, y.repeat(6, 1), rows) for y in (q, k))
    scores = queries @ keys.T
    for offset in range(-5, 6):
        along = scores.diagonal(offset)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    half = SimpleNamespace(**{**vars(ROTARY), "fraction": 0.5})
    kept = rotated(half, queries, rows)
    assert torch.equal(kept[:, 2:], queries[:, 2:])
    assert rotated(SimpleNamespace(kind="none"), queries, rows) is queries


def test_alibi() -> None:
    assert alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(3) == [2**-4, 2**-8, 2**-2]
    config = SimpleNamespace(kind="alibi")
    expected = -0.25 * torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]]).double()
    assert torch.equal(biases(config, {}, 0, 4, [0, 1, 2], causal=False), expected)


def test_t5_buckets() -> None:
    """Those of the T5 code, for 32 buckets up to a distance of 128."""
    causal = {0: 0, 3: 0, -1: 1, -15: 15, -16: 16, -20: 17, -127: 31, -500: 31}
    for ahead, bucket in causal.items():
        assert t5_bucket(ahead, 32, 128, causal=True) == bucket
    both = {0: 0, 1: 17, -1: 1, -7: 7, -8: 8, 8: 24, -12: 9, -127: 15, 500: 31}
    for ahead, bucket in both.items():
        assert t5_bucket(ahead, 32, 128, causal=False) == bucket
    config = SimpleNamespace(kind="t5", buckets=4, max_distance=4)
    table = {"table.weight": torch.arange(8.0).double().view(4, 2)}
    found = biases(config, table, 1, 2, [0, 1, 2], causal=True)
    assert found.tolist() == [[1, 1, 1], [3, 1, 1], [5, 3, 1]]


def test_transformer_xl() -> None:
    config = SimpleNamespace(kind="transformer_xl")
    weights = {
        "u": torch.randn(2, 3).double(),
        "v": torch.randn(2, 3).double(),
        "r_proj.weight": torch.randn(6, 4).double(),
    }
    q = torch.randn(2, 3).double()
    assert torch.equal(content_bias(config, weights, 1, q), q + weights["u"][1])
    scores = distance_scores(config, weights, 1, q, [4, 6])
    r = weights["r_proj.weight"][3:] @ torch.tensor(sinusoid(2, 4)).double()
    assert isinstance(scores, torch.Tensor)
    assert float(scores[1, 0]) == pytest.approx(float((q[1] + weights["v"][1]) @ r), abs=1e-6)
    nothing = SimpleNamespace(kind="none")
    assert distance_scores(nothing, {}, 0, q, [0, 1]) == 0
    assert content_bias(nothing, {}, 0, q) is q
    assert not biases(nothing, {}, 0, 2, [0, 1], causal=True).any()
