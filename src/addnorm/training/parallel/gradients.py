"""Sums of gradients over processes that hold the same weights, each with a part of the gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.tensors import is_part, local, piece_of


def have_alike(parameters: Sequence[nn.Parameter], group: Group) -> None:
    """Give each parameter a gradient in all processes of a group if it has one in any of them."""
    present = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    for parameter, n in zip(parameters, group.sum(present).tolist(), strict=True):
        if n and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def sum_of_copies(parameter: nn.Parameter) -> None:
    """Sum the gradients of a value that several processes of the same rows hold."""
    piece = piece_of(parameter)
    if parameter.grad is None or piece is None or piece.copies == 1:
        return
    total = piece.sum_of_copies(local(parameter.grad))
    if is_part(parameter.grad):
        local(parameter.grad).copy_(total)
    else:  # the gradient of this process stays known apart
        parameter.grad = total


def sum_over(parameters: Sequence[nn.Parameter], group: Group) -> None:
    """Sum the gradients of parameters of one type over a group, all of them at once."""
    grads: list[Any] = [parameter.grad for parameter in parameters]
    first = parameters[0]
    present = torch.tensor([float(g is not None) for g in grads]).to(first)
    parts = [
        (torch.zeros_like(p) if g is None else g).flatten()
        for p, g in zip(parameters, grads, strict=True)
    ]
    flat = torch.cat([present, *parts])
    counts, *sums = group.sum(flat).split([len(parameters), *(len(part) for part in parts)])
    for parameter, count, total in zip(parameters, counts.tolist(), sums, strict=True):
        parameter.grad = total.view_as(parameter) if count else None
