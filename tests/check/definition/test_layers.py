"""Norms and feed-forward layers: the numbers of the papers, and torch's own functions."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from addnorm.check.definition.layers import (
    Observed,
    activated,
    feedforward,
    linear,
    normalised,
    routed,
    under,
)

X = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).double()
ONES, ZEROS = torch.ones(3).double(), torch.zeros(3).double()


def norm(kind: str, weights: dict[str, torch.Tensor], observed: Observed | None = None) -> object:
    found = normalised(SimpleNamespace(kind=kind, eps=1e-12), weights, X, observed)
    return found.round(decimals=4).tolist()


def test_norms() -> None:
    assert norm("layernorm", {"weight": ONES}) == [[-1.2247, 0, 1.2247]] * 2
    assert norm("layernorm", {"weight": ONES, "bias": ONES}) == [[-0.2247, 1, 2.2247]] * 2
    rms = (X / X.square().mean(1, keepdim=True).sqrt()).round(decimals=4).tolist()
    assert norm("rmsnorm", {"weight": ONES}) == rms
    assert norm("offset_rmsnorm", {"weight": ZEROS}) == rms
    assert norm("scalenorm", {"weight": torch.tensor(3.0).double().sqrt()}) == rms
    assert normalised(None, {}, X) is X


def test_batch_norm_in_training_and_after() -> None:
    weights = {"weight": ONES, "bias": ZEROS, "running_mean": ONES, "running_var": 4 * ONES}
    assert norm("batchnorm", weights) == [[0, 0.5, 1], [1.5, 2, 2.5]]
    observed: Observed = {}
    assert norm("batchnorm", weights, observed) == [[-1] * 3, [1] * 3]
    mean, variance = observed[ONES]
    assert mean.tolist() == [2.5, 3.5, 4.5]
    assert variance.tolist() == [4.5] * 3  # unbiased


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", F.relu),
        ("squared_relu", lambda x: F.relu(x) ** 2),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("silu", F.silu),
        ("sigmoid", torch.sigmoid),
    ],
)
def test_activations_are_those_of_torch(name: str, function: object) -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)[None]
    assert callable(function)
    torch.testing.assert_close(activated(SimpleNamespace(activation=name), x), function(x))


def test_a_token_takes_its_best_experts() -> None:
    logits = torch.tensor([[0.0, 1, 2], [3, 1, 2]]).double()
    found = routed(logits, 2)
    best = torch.tensor([1.0, 2]).double().softmax(0).tolist()
    assert found[0].tolist() == pytest.approx([0, *best])
    assert (found > 0).tolist() == [[False, True, True], [True, False, True]]
    assert routed(logits, 1).sum(1).tolist() == pytest.approx(logits.softmax(1).amax(1).tolist())
    torch.testing.assert_close(routed(logits, 3), logits.softmax(1))


def test_experts_are_added_up() -> None:
    def weights(scale: float) -> dict[str, torch.Tensor]:
        return {
            "up_proj.weight": torch.eye(3).double(),
            "down_proj.weight": scale * torch.eye(3).double(),
        }

    expert = SimpleNamespace(kind="mlp", activation="relu")
    every = {f"experts.{e}.{name}": w for e in (0, 1) for name, w in weights(e + 1).items()} | {
        "router.weight": torch.zeros(2, 3).double()
    }
    config = SimpleNamespace(kind="moe", expert=expert, n_experts=2, top_k=2)
    torch.testing.assert_close(feedforward(config, every, X), 1.5 * X)
    gated = SimpleNamespace(kind="gated", activation="relu")
    torch.testing.assert_close(
        feedforward(gated, weights(1) | {"gate_proj.weight": 2 * torch.eye(3).double()}, X),
        2 * X**2,
    )


def test_weights_of_a_module() -> None:
    weights = {"a.b.weight": torch.ones(2, 3).double(), "a.b.bias": torch.ones(2).double(), "ab": X}
    assert set(under(weights, "a")) == {"b.weight", "b.bias"}
    assert linear(under(weights, "a"), "b", X).tolist() == [[7, 7], [16, 16]]
