"""Gradients are summed over processes, also where some of them have none."""

import torch
from tests.training.parallel.threads import together
from torch import Tensor, nn

from addnorm.training.parallel.gradients import have_alike, sum_over
from addnorm.training.parallel.pieces import Group


def parameters_of(group: Group) -> list[nn.Parameter]:
    """Three: all processes have a gradient of the first, one of the second, none of the last."""
    parameters = [nn.Parameter(torch.zeros(2, n)) for n in (1, 2, 3)]
    parameters[0].grad = torch.full((2, 1), 1.0 + group.rank)
    if group.rank == 1:
        parameters[1].grad = torch.ones(2, 2)
    return parameters


def test_a_parameter_has_the_sum_or_no_gradient_in_any_process() -> None:
    def compute(group: Group) -> list[Tensor | None]:
        parameters = parameters_of(group)
        sum_over(parameters, group)
        return [parameter.grad for parameter in parameters]

    for first, second, third in together(3, compute):
        assert first is not None
        assert second is not None
        assert first.equal(torch.full((2, 1), 6.0))
        assert second.equal(torch.ones(2, 2))
        assert third is None


def test_a_gradient_that_one_process_has_is_zero_in_the_others() -> None:
    def compute(group: Group) -> list[Tensor | None]:
        parameters = parameters_of(group)
        have_alike(parameters, group)
        return [parameter.grad for parameter in parameters]

    found = together(3, compute)
    assert [None if grads[1] is None else float(grads[1].sum()) for grads in found] == [0, 4, 0]
    assert all(grads[2] is None for grads in found)
