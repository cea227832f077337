"""How micro-batches go through stages; what they compute is tested in `test_processes.py`."""

import copy

import pytest
import torch
from tests.training.parallel.test_stages import Alone, model_of

from addnorm.training.parallel.pipeline import Pipeline, finite, with_loss
from addnorm.training.parallel.plan import Schedule
from addnorm.training.parallel.stages import StagedModel


@pytest.mark.parametrize(
    ("schedule", "n", "parts"),
    [
        ("1f1b", 7, [7]),
        ("gpipe", 1, [1]),
        ("interleaved", 6, [6]),
        ("interleaved", 7, [6, 1]),
        ("interleaved", 2, [2]),
        ("interleaved", 1, [1]),
    ],
)
def test_interleaved_stages_take_multiples_of_the_processes(
    schedule: Schedule, n: int, parts: list[int]
) -> None:
    model, _ = model_of("decoder")
    group = Alone(0, 2)
    total = 4 if schedule == "interleaved" else 2
    pipeline = Pipeline(StagedModel(copy.deepcopy(model), total, group), group, schedule)
    assert pipeline.parts(n) == parts


def test_a_loss_is_differentiated_with_the_values_handed_on() -> None:
    x = torch.ones(3, requires_grad=True)
    weight = torch.tensor(2.0, requires_grad=True)
    y = with_loss(3 * x, weight.square())
    assert torch.equal(y, 3 * x)
    y.backward(torch.tensor([1.0, 0.0, 2.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 0.0, 6.0]
    assert weight.grad == 4.0


def test_values_that_are_not_finite_are_seen() -> None:
    assert finite(torch.tensor([1.0, -2.0]))
    for bad in ("nan", "inf", "-inf"):
        assert not finite(torch.tensor([1.0, float(bad)]))
    assert not finite(torch.tensor([float("inf"), -float("inf")]))
