"""A stand-in computes what the CPU computes, and refuses the CPU's tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.checking.stand_in import THERE, StandIn, moved, numbers, stand_in_device


def there(*shape: int) -> Tensor:
    return StandIn(torch.randn(*shape, generator=torch.Generator().manual_seed(0)))


def test_a_stand_in_is_on_meta_and_has_numbers() -> None:
    with stand_in_device():
        x = torch.arange(6.0, device=THERE).view(2, 3)
        y = (x @ x.mT).sum(1)
        assert y.device == THERE
        assert y.tolist() == [19.0, 64.0]
        assert y[0].item() == 19.0
        assert bool((y > 0).all())
    assert_close(numbers(y), torch.tensor([19.0, 64.0]))


def test_tensors_of_numbers_come_there_on_demand() -> None:
    with stand_in_device():
        x = torch.tensor([1, 2], device=THERE)
        y = x.new_tensor([3, 4])
        assert isinstance(x, StandIn)
        assert (x + y).tolist() == [4, 6]
        assert type(torch.tensor([1, 2])) is Tensor
        assert x.new_tensor([0.5]).dtype == torch.long
        back = x.to("cpu")
    assert type(back) is Tensor
    assert back.tolist() == [1, 2]


REFUSED: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, i: x + torch.ones(3),
    lambda x, i: x[i],
    lambda x, i: torch.cat([x, torch.ones(1, 3)]),
    lambda x, i: nn.functional.linear(x, torch.ones(2, 3)),
    lambda x, i: torch.isin(x, torch.ones(2)),
    lambda x, i: torch.where(x > 0, x, torch.zeros(2, 3)),
]


@pytest.mark.parametrize("operation", REFUSED)
def test_tensors_of_the_cpu_are_refused(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    with stand_in_device(), pytest.raises(RuntimeError, match="a tensor of the CPU"):
        operation(there(2, 3), torch.tensor([0]))


def test_a_number_without_dimensions_and_a_copy_are_not() -> None:
    with stand_in_device():
        x = there(2, 3)
        assert (x * torch.tensor(2.0)).device == THERE
        x.copy_(torch.ones(2, 3))
    assert_close(numbers(x), torch.ones(2, 3))


def test_changes_in_place_reach_views_and_shapes() -> None:
    with stand_in_device():
        x = there(2, 3)
        x[0].zero_()
        x[:, 1].add_(1.0)
        shape = x.transpose_(0, 1).shape
    assert shape == (3, 2)
    assert numbers(x)[:, 0].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_views_in_inference(mode: Callable[[], object]) -> None:
    with stand_in_device(), mode():  # type: ignore[attr-defined]
        x = there(2, 3)
        assert x[:, 1:].contiguous().shape == (2, 2)


def test_a_moved_model_is_the_same_one() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    x = torch.randn(4, 3)
    y = model(x)
    y.square().sum().backward()
    gradient = model[0].weight.grad
    model.zero_grad()
    with stand_in_device():
        moved(model)
        assert model[2].weight is model[0].weight
        model[1].running_mean.zero_()
        ours = model(x.to(THERE))
        ours.square().sum().backward()
    assert_close(numbers(ours), y.detach())
    assert_close(numbers(model[0].weight.grad), gradient)
