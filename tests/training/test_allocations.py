"""Counting allocations: each storage once, from its creation until it is freed."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from addnorm.training.allocations import Allocations


def test_storages_are_counted_until_they_are_freed() -> None:
    with Allocations() as counted:
        x = torch.zeros(100)
        assert (counted.live, counted.peak) == (400, 400)
        view = x[10:].view(9, 10)
        x.add_(1)
        assert counted.live == 400
        y = x + 1
        assert counted.live == 800
        del y, x
        assert counted.live == 400
        del view
    assert (counted.live, counted.peak) == (0, 800)


def test_tensors_of_the_backward_pass_are_live() -> None:
    weight = torch.zeros(50, requires_grad=True)
    counted = Allocations()
    counted.add([weight, weight.view(5, 10)])
    assert counted.live == 200
    with counted:
        loss = weight.exp().sum()
        assert counted.live == 200 + 200 + 4  # the exponential is its own derivative
        loss.backward()
        del loss
    assert counted.live == 200 + 200
    assert weight.grad is not None


def test_tensors_without_values_count_as_others_do() -> None:
    with FakeTensorMode(), Allocations() as counted:
        x = torch.zeros(2**40)
        assert counted.live == 4 * 2**40
        del x
    assert counted.live == 0
