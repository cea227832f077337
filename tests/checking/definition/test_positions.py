"""Position encodings: the papers' numbers, and scores that depend on offsets only."""

import math
from typing import Any

import pytest
import torch

from addnorm.checking.definition.positions import (
    POSITIONS,
    Head,
    PositionDefinition,
    alibi_slopes,
    bias,
    embedded,
    met,
    rotated,
    sinusoid,
    t5_bucket,
)
from addnorm.checking.definition.texts import Texts
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)

ROTARY = RotaryConfig(theta=100.0)


def head(number: int, n_heads: int, n: int, *, causal: bool = False, **places: Any) -> Head:
    texts = Texts(text=[0] * n, place=places.get("place", range(n)))
    return Head(number=number, n_heads=n_heads, texts=texts, causal=causal, scale=0.5)


def test_sinusoids() -> None:
    assert sinusoid(0, 4) == (0, 1, 0, 1)
    assert sinusoid(1, 4) == pytest.approx((0.8415, 0.5403, 0.0100, 0.99995), abs=5e-5)
    assert len(sinusoid(3, 5)) == 5


def test_position_vectors_added_to_embeddings() -> None:
    x = torch.tensor([[0.5, 1.0, 0.3, 0.7], [0.8, 0.6, 0.4, 0.9]]).double()
    expected = torch.tensor([[0.5, 2.0, 0.3, 1.7], [1.6415, 1.1403, 0.4100, 1.89995]]).double()
    found = embedded(SinusoidalConfig(), {}, x, Texts.of([2]))
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)
    halves = embedded(SinusoidalConfig(layout="halves"), {}, x, Texts.of([2])) - x
    torch.testing.assert_close(halves[:, [0, 2, 1, 3]], found - x)
    table = {"table.weight": torch.eye(4).double()}
    texts = Texts(text=[0, 0], place=[2, 0])
    learned = embedded(LearnedConfig(), table, torch.zeros_like(x), texts)
    assert learned.argmax(1).tolist() == [2, 0]
    assert embedded(NoPositionConfig(), {}, x, texts) is x


@pytest.mark.parametrize(("layout", "pairs"), [("half", (0, 2)), ("interleaved", (0, 1))])
def test_the_first_pair_turns_by_one_radian_a_position(layout: Any, pairs: tuple[int, int]) -> None:
    x = torch.zeros(3, 4).double()
    x[:, pairs[0]] = 1.0
    turned = rotated(RotaryConfig(theta=100.0, layout=layout), {}, x, Texts.of([3]))
    assert turned[:, pairs[0]].tolist() == pytest.approx([1, math.cos(1), math.cos(2)])
    assert turned[:, pairs[1]].tolist() == pytest.approx([0, math.sin(1), math.sin(2)])


def test_rotary_scores_see_the_offset_alone() -> None:
    q, k = torch.randn(2, 4).double()
    rows = Texts.of([6])
    queries, keys = (rotated(ROTARY, {}, y.repeat(6, 1), rows) for y in (q, k))
    scores = queries @ keys.T
    for offset in range(-5, 6):
        along = scores.diagonal(offset)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    kept = rotated(RotaryConfig(theta=100.0, fraction=0.5), {}, queries, rows)
    assert torch.equal(kept[:, 2:], queries[:, 2:])
    assert rotated(NoPositionConfig(), {}, queries, rows) is queries


def test_alibi() -> None:
    assert alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(3) == [2**-4, 2**-8, 2**-2]
    expected = -0.25 * torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]]).double()
    assert torch.equal(bias(ALiBiConfig(), {}, torch.zeros(3, 2), head(0, 4, 3)), expected)


def test_kerple() -> None:
    raw = math.log(math.e - 1)  # softplus of it is one
    weights = {
        "raw_amplitude": torch.tensor([9.0, raw]).double(),
        "raw_rate": torch.tensor([9.0, raw]).double(),
    }
    found = bias(KERPLEConfig(), weights, torch.zeros(3, 2), head(1, 2, 3))
    assert found[2].tolist() == pytest.approx([-math.log(3), -math.log(2), 0], abs=1e-6)


def test_t5_buckets() -> None:
    """Those of the T5 code, for 32 buckets up to a distance of 128."""
    causal = {0: 0, 3: 0, -1: 1, -15: 15, -16: 16, -20: 17, -127: 31, -500: 31}
    for ahead, bucket in causal.items():
        assert t5_bucket(ahead, 32, 128, causal=True) == bucket
    both = {0: 0, 1: 17, -1: 1, -7: 7, -8: 8, 8: 24, -12: 9, -127: 15, 500: 31}
    for ahead, bucket in both.items():
        assert t5_bucket(ahead, 32, 128, causal=False) == bucket
    table = {"table.weight": torch.arange(8.0).double().view(4, 2)}
    config = T5BiasConfig(buckets=4, max_distance=4)
    found = bias(config, table, torch.zeros(3, 2), head(1, 2, 3, causal=True))
    assert found.tolist() == [[1, 1, 1], [3, 1, 1], [5, 3, 1]]


def test_transformer_xl() -> None:
    config = TransformerXLConfig()
    weights = {
        "u": torch.randn(2, 3).double(),
        "v": torch.randn(2, 3).double(),
        "r_proj.weight": torch.randn(6, 4).double(),
    }
    q, where = torch.randn(2, 3).double(), head(1, 2, 2, place=[4, 6])
    assert torch.equal(met(config, weights, q, where), q + weights["u"][1])
    scores = bias(config, weights, q, where)
    r = weights["r_proj.weight"][3:] @ torch.tensor(sinusoid(2, 4), dtype=torch.float64)
    assert float(scores[1, 0]) == pytest.approx(0.5 * float((q[1] + weights["v"][1]) @ r))


def test_schemes_that_do_nothing_there() -> None:
    q = torch.zeros(2, 3)
    assert met(NoPositionConfig(), {}, q, head(0, 2, 2)) is q
    assert not bias(NoPositionConfig(), {}, q, head(0, 2, 2)).any()


def test_ones_own_scheme_is_a_bias_or_several_functions() -> None:
    class Mine:
        pass

    q = torch.ones(2, 3).double()
    with POSITIONS.adding(Mine, lambda config, weights, q, head: q @ q.T):
        assert bias(Mine(), {}, q, head(0, 2, 2)).tolist() == [[3, 3], [3, 3]]
    with POSITIONS.adding(Mine, {"embed": lambda config, weights, x, texts: x + 1}):
        assert isinstance(POSITIONS.of(Mine()), PositionDefinition)
        assert embedded(Mine(), {}, q, Texts.of([2])).unique().tolist() == [2]
        assert not bias(Mine(), {}, q, head(0, 2, 2)).any()
