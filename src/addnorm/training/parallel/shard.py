"""The twin of a model whose weights are split among processes, by torch's `fully_shard`."""

import copy

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from addnorm.errors import InputError
from addnorm.models.transformer import StackModel
from addnorm.nn.blocks import Stack
from addnorm.training.parallel.tensors import whole


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """A twin of `model` of which each process of the mesh holds a part; `model` stays as it is.

    Each block is gathered when it runs; all other weights, tied tables among them, are gathered
    together. Gradients are summed over the processes. Raises `InputError` for a weight that is a
    single number.
    """
    _check_shapes(model)
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    twin = copy.deepcopy(model, shared)  # pyright: ignore[reportArgumentType]
    for stack in [module for module in twin.modules() if isinstance(module, Stack)]:
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(twin, mesh=mesh)
    for module in (module for module in twin.modules() if isinstance(module, FSDPModule)):
        module.set_gradient_divide_factor(1.0)  # the mean would depend on the number of processes
        module.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(twin, "hidden")
    if isinstance(twin, StackModel):
        register_fsdp_forward_method(twin, "exit_logits")
    return twin


def _check_shapes(model: nn.Module) -> None:
    """Raise `InputError` for a weight that is a single number."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise InputError(
                f"parallel.shard = true: {name} is a single number, which has no parts: use "
                "shard = false, or another norm"
            )


@torch.no_grad()
def fill(model: nn.Module, placed: nn.Module, *, keep: bool) -> None:
    """Give `model` the whole weights of its sharded twin, or with `keep` false take part alone."""
    parts = dict(placed.named_parameters())
    for name, parameter in model.named_parameters():
        full = whole(parts[name].detach())
        if keep:
            parameter.data = full


def empty(model: nn.Module) -> None:
    """Free the memory of a model's parameters."""
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)
