"""Scores against the papers' formulas."""

import math

import pytest
import torch

from addnorm.checking.definition.scores import SCORES, ScoreDefinition, scale, scored
from addnorm.nn.attention import AdditiveConfig, BilinearConfig, DotConfig, ScaledDotConfig

Q, K = torch.tensor([[1.0, 2, 3]]).double(), torch.tensor([[4.0, 5, 6]]).double()


def test_products() -> None:
    assert float(scored(DotConfig(), {}, 0, Q, K)) == 32
    assert float(scored(ScaledDotConfig(), {}, 0, Q, K)) == pytest.approx(32 / math.sqrt(3))
    assert scale(ScaledDotConfig(), 3) == pytest.approx(3**-0.5)
    assert (scale(ScaledDotConfig(factor=0.5), 3), scale(DotConfig(), 3)) == (0.5, 1)
    capped = ScaledDotConfig(factor=0.5, softcap=2.0)
    assert float(scored(capped, {}, 0, Q, K)) == pytest.approx(2 * math.tanh(8))


def test_each_head_has_weights_of_its_own() -> None:
    matrix = torch.zeros(2, 3, 3).double()
    matrix[1, 0, 2] = 1.0  # k_0 q_2
    assert float(scored(BilinearConfig(), {"weight": matrix}, 1, Q, K)) == 12
    assert float(scored(BilinearConfig(), {"weight": matrix}, 0, Q, K)) == 0
    additive = {
        "key": torch.eye(3).double()[None] / 10,
        "query": torch.zeros(1, 3, 3).double(),
        "vector": torch.ones(1, 3, 1).double(),
    }
    found = float(scored(AdditiveConfig(), additive, 0, Q, K))
    assert found == pytest.approx(sum(math.tanh(x / 10) for x in (4, 5, 6)))


def test_ones_own_score_may_be_a_function() -> None:
    class Mine:
        pass

    with SCORES.adding(Mine, lambda config, weights, h, q, k: q @ k.T + h):
        assert float(scored(Mine(), {}, 2, Q, K)) == 34
        assert scale(Mine(), 4) == 1
    with SCORES.adding(Mine, ScoreDefinition(lambda *_: Q, lambda *_: 0.25)):
        assert scale(Mine(), 4) == 0.25
