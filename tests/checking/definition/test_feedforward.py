"""Feed-forward layers against explicit products."""

import pytest
import torch

from addnorm.checking.definition.feedforward import feedforward, routed
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig

X = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).double()


def taking(top_k: int) -> MixtureOfExpertsConfig:
    return MixtureOfExpertsConfig(n_experts=3, top_k=top_k)


def test_a_token_takes_its_best_experts() -> None:
    logits = torch.tensor([[0.0, 1, 2], [3, 1, 2]]).double()
    found = routed(taking(2), logits, torch.zeros(3))
    best = torch.tensor([1.0, 2]).double().softmax(0).tolist()
    assert found[0].tolist() == pytest.approx([0, *best])
    assert (found > 0).tolist() == [[False, True, True], [True, False, True]]
    assert routed(taking(1), logits, torch.zeros(3)).sum(1).tolist() == pytest.approx(
        logits.softmax(1).amax(1).tolist()
    )
    torch.testing.assert_close(routed(taking(3), logits, torch.zeros(3)), logits.softmax(1))


def test_experts_are_added_up() -> None:
    def weights(scale: float) -> dict[str, torch.Tensor]:
        return {
            "up_proj.weight": torch.eye(3).double(),
            "down_proj.weight": scale * torch.eye(3).double(),
        }

    every = {f"experts.{e}.{name}": w for e in (0, 1) for name, w in weights(e + 1).items()} | {
        "router.weight": torch.zeros(2, 3).double()
    }
    config = MixtureOfExpertsConfig(expert=FeedForwardConfig(), n_experts=2, top_k=2)
    torch.testing.assert_close(feedforward(config, every, X), 1.5 * X)
    gated = GatedFeedForwardConfig(activation="relu")
    torch.testing.assert_close(
        feedforward(gated, weights(1) | {"gate_proj.weight": 2 * torch.eye(3).double()}, X),
        2 * X**2,
    )
