"""The load of the experts in training, against counts by hand."""

import pytest
import torch
from torch import Tensor, nn

from addnorm.nn.moe import MixtureOfExperts
from addnorm.train.load import ExpertLoad

VALID = torch.tensor([[True, True, True, False], [True, True, True, False]])


def logits(*chosen: int) -> Tensor:
    """Router logits of two texts of four tokens, that prefer these experts of three."""
    return nn.functional.one_hot(torch.tensor(chosen), 3).float().view(2, 4, 3)


def load(capacity_factor: float | None = None) -> ExpertLoad:
    experts = [nn.Identity() for _ in range(3)]
    mixture = MixtureOfExperts(4, experts, top_k=1, capacity_factor=capacity_factor)
    return ExpertLoad({"stack.0": mixture})


def test_the_largest_load_over_the_mean_without_padding() -> None:
    counted = load()
    counted.count({"stack.0": logits(0, 0, 1, 2, 0, 0, 2, 2)}, {"valid": VALID})  # 4, 1, 1
    assert counted.figures() == {"load_ratio": pytest.approx(2.0)}
    assert counted.latest == {"load_ratio": pytest.approx(2.0)}
    assert counted.figures() == {}


def test_micro_batches_add_up() -> None:
    counted = load()
    for expert in range(3):
        counted.count({"stack.0": logits(*[expert] * 8)}, {})
    assert counted.figures() == {"load_ratio": pytest.approx(1.0)}


def test_the_share_dropped_of_the_real_tokens() -> None:
    counted = load(0.75)  # two places
    counted.count({"stack.0": logits(0, 0, 0, 0, 0, 1, 2, 2)}, {"valid": VALID})
    assert counted.figures() == {"load_ratio": pytest.approx(2.0), "dropped": pytest.approx(2 / 6)}


def test_at_inference_nothing_is_dropped() -> None:
    counted = load(0.75)
    counted.mixtures["stack.0"].eval()
    counted.count({"stack.0": logits(*[0] * 8)}, {})
    assert counted.figures() == {"load_ratio": pytest.approx(3.0)}


def test_without_mixtures_or_real_tokens_there_are_no_figures() -> None:
    assert ExpertLoad({}).figures() == {}
    counted = load(0.75)
    counted.count({"stack.0": logits(*[0] * 8)}, {"valid": torch.zeros_like(VALID)})
    assert counted.figures() == {}
