"""Placements: the equations with a norm that adds one and a sublayer that doubles."""

import pytest
import torch

from addnorm.checking.definition.placements import PLACEMENTS, Depth, deepnorm_alpha, parallel
from addnorm.nn.hyper_connections import WITH_STREAMS
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)

X = torch.tensor([[3.0]]).double()


def placed(config: object, depth: Depth | None = None) -> float:
    definition = PLACEMENTS.of(config).sublayer
    assert definition is not None
    found = definition(config, lambda _, x: x + 1, X, lambda x: 2 * x, depth or Depth(decoder=8))
    return float(found)


def test_sublayers() -> None:
    assert placed(PostNormConfig()) == 3 + 6 + 1
    assert placed(PreNormConfig()) == 3 + 2 * (3 + 1)
    assert placed(SandwichNormConfig()) == 3 + (2 * (3 + 1) + 1)
    assert placed(SandwichNormConfig(norms="output")) == 3 + (2 * 3 + 1)
    assert placed(DeepNormConfig()) == 2 * 3 + 6 + 1  # (2 · 8)^¼ = 2
    first, second = Depth(), Depth(first=False)
    assert placed(PreNormConfig(first=False), first) == 3 + 6
    assert placed(PreNormConfig(first=False), second) == 3 + 2 * (3 + 1)


def test_alpha() -> None:
    assert deepnorm_alpha(Depth(encoder=8)) == 2
    assert deepnorm_alpha(Depth(encoder=6, decoder=27, causal=True)) == 3
    assert deepnorm_alpha(Depth(encoder=2, decoder=2)) == pytest.approx(0.81 * 2 ** (5 / 16))


def test_parallel_has_one_norm_or_one_for_each() -> None:
    named: list[str] = []

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        named.append(name)
        return x + 1

    sublayers = {"attention": lambda x: 2 * x, "feedforward": lambda x: 10 * x}
    assert float(parallel(ParallelConfig(), norm, X, sublayers)) == 3 + 8 + 40
    parallel(ParallelConfig(norms="each"), norm, X, sublayers)
    assert named == ["norm", "norm", "attention_residual.norm", "feedforward_residual.norm"]


def test_which_end_in_a_norm() -> None:
    final = [PreNormConfig, SandwichNormConfig, ParallelConfig, *WITH_STREAMS]
    assert all(PLACEMENTS.of(config()).final for config in final)
    assert not any(PLACEMENTS.of(config()).final for config in (PostNormConfig, DeepNormConfig))
