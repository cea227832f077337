"""Moving averages, means, and temporarily swapped weights."""

import pytest
import torch
from tests.training import tiny
from torch import nn

from addnorm.models.weights import weights_of
from addnorm.nn.norms import BatchNorm
from addnorm.training.average import MovingAverage, mean, swapped


def random_walk(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_the_moving_average_equals_its_formula(decay: float) -> None:
    model = tiny.build().double()
    average = MovingAverage(model, decay)
    expected = {name: w.clone() for name, w in weights_of(model).items()}
    for n in range(30):
        random_walk(model)
        average.update(model)
        d = min(decay, (1 + n) / (10 + n))
        expected = {k: d * expected[k] + (1 - d) * w for k, w in weights_of(model).items()}
    assert average.updates == 30
    torch.testing.assert_close(average.weights, expected, rtol=0, atol=1e-12)


def test_an_average_does_not_change_the_model() -> None:
    model = tiny.build()
    average = MovingAverage(model, 0.9)
    before = {name: w.clone() for name, w in weights_of(model).items()}
    average.update(model)
    average.weights["head.bias" if "head.bias" in average.weights else next(iter(before))].add_(1)
    tiny.same(weights_of(model), before)


def test_the_mean_is_summed_in_float64() -> None:
    sets = [{"w": torch.tensor([value])} for value in (1.0, 2.0**-24, 2.0**-24, 2.0**-24)]
    # In float32, 1 + 2⁻²⁴ is 1: three of them would be lost.
    assert mean(sets)["w"].item() == pytest.approx((1 + 3 * 2.0**-24) / 4, rel=0, abs=2**-26)
    assert mean(iter(sets))["w"].dtype == torch.float32


def test_the_mean_of_equal_weights_is_equal() -> None:
    weights = weights_of(tiny.build())
    tiny.same(mean([weights] * 3), weights)


def test_the_mean_of_nothing_is_rejected() -> None:
    with pytest.raises(ValueError, match="no checkpoints"):
        mean([])


def test_swapped_weights_are_restored() -> None:
    model = tiny.build()
    own = {name: w.clone() for name, w in weights_of(model).items()}
    other = {name: torch.randn_like(w) for name, w in own.items()}
    with swapped(model, other):
        tiny.same(weights_of(model), other)
    tiny.same(weights_of(model), own)
    with swapped(model, None):
        tiny.same(weights_of(model), own)


def test_swapped_weights_are_restored_after_an_error() -> None:
    model = tiny.build()
    own = {name: w.clone() for name, w in weights_of(model).items()}
    with (
        pytest.raises(ZeroDivisionError),
        swapped(model, {name: w + 1 for name, w in own.items()}),
    ):
        raise ZeroDivisionError
    tiny.same(weights_of(model), own)


def test_swapped_weights_are_restored_if_the_others_do_not_fit() -> None:
    model = tiny.build()
    own = {name: w.clone() for name, w in weights_of(model).items()}
    *most, last = own
    others = {name: own[name] + 1 for name in most}
    with pytest.raises(KeyError, match=last), swapped(model, others):
        pytest.fail("nothing runs with half of the weights")
    tiny.same(weights_of(model), own)


# Running statistics.


def with_statistics() -> nn.Module:
    """A batch norm that has seen a batch, and a buffer that no checkpoint wants."""
    model = nn.Sequential(nn.Linear(3, 3), BatchNorm(3))
    model.register_buffer("table", torch.zeros(2), persistent=False)
    model(torch.randn(2, 4, 3))
    return model


def test_running_statistics_are_averaged_and_swapped() -> None:
    model = with_statistics()
    average = MovingAverage(model, 0.0)
    model(torch.randn(2, 4, 3) + 5)
    average.update(model)
    tiny.same(average.weights, weights_of(model))
    sets = [{k: w.clone() for k, w in weights_of(with_statistics()).items()} for _ in range(2)]
    middle = (sets[0]["1.running_var"] + sets[1]["1.running_var"]) / 2
    torch.testing.assert_close(mean(sets)["1.running_var"], middle)
    with swapped(model, sets[0]):
        tiny.same(weights_of(model), sets[0])
    tiny.same(weights_of(model), average.weights)
