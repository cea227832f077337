"""A copy of a model whose weights torch's `fully_shard` splits among processes."""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard, distribute_tensor

from addnorm.errors import InputError
from addnorm.models.transformer import StackModel
from addnorm.nn.blocks import Stack
from addnorm.nn.deferred_init import InitialWeight, without_memory
from addnorm.training.parallel.pieces import AnyPiece, Group
from addnorm.training.parallel.tensors import is_part


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of a model with parameters of its own, which share memory with the original's."""
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)  # pyright: ignore[reportArgumentType]


def filling(
    twin: nn.Module,
    model: nn.Module,
    pieces: Mapping[str, AnyPiece],
    everyone: Group,
    initial: InitialWeight | None,
) -> Callable[[nn.Module], None]:
    """A function that gives the weights of a part of `twin` their first values, if they lack them.

    The leading process draws each weight of the model, one after another, and every process keeps
    its piece. Without `initial` all have their values.
    """
    wholes, pending = dict(model.named_parameters()), dict[nn.Parameter, str]()
    if initial is not None:
        pending.update({parameter: name for name, parameter in twin.named_parameters()})

    def fill(part: nn.Module) -> None:
        for parameter in [p for p in part.parameters() if p in pending]:
            name = pending.pop(parameter)
            weight, piece = wholes[name], pieces.get(name)
            drawn = torch.empty_like(weight)
            if initial is not None and not everyone.rank:
                drawn = initial(weight)
            drawn = everyone.sent(drawn, 0)
            parameter.data = drawn if piece is None else piece.of(drawn).clone()

    return fill


def sharded(
    twin: nn.Module, mesh: DeviceMesh, fill: Callable[[nn.Module], None] = lambda _: None
) -> nn.Module:
    """Keep a shard of each weight of `twin` in each process of the mesh; return the twin.

    `fill` gives the weights of a block their values before they are split.
    Each block is gathered when it runs; all other weights, tied tables and those that blocks share
    among them, are gathered together, except empty ones, those of another stage of a pipeline. So
    are all weights of blocks that share some with each other alone, as all layers of ALBERT do.
    Gradients are summed over the processes. Raises `InputError` for a weight that is a single
    number.
    """
    _check_shapes(twin)
    stacks = [module for module in twin.modules() if isinstance(module, Stack)]
    present = {block for stack in stacks for block in stack.blocks}  # those of this stage
    shared = shared_weights(twin)
    around = {
        parameter
        for name, parameter in twin.named_parameters(remove_duplicate=False)
        if ".blocks." not in name
    }
    elsewhere = {parameter for parameter in twin.parameters() if not parameter.numel()}
    for block in (block for stack in stacks for block in stack.blocks.children()):
        fill(block)  # in every stage, since all processes fill the same weight at a time
        if block in present and not {*block.parameters()} & (shared - around):
            fully_shard(block, mesh=mesh, ignored_params=shared)
    fill(twin)
    fully_shard(twin, mesh=mesh, ignored_params=elsewhere)
    _shard_empty(twin, elsewhere, mesh)
    assert all(map(is_part, twin.parameters())), "each weight belongs to a block or to all"
    for module in (module for module in twin.modules() if isinstance(module, FSDPModule)):
        module.set_gradient_divide_factor(1.0)  # the mean would depend on the number of processes
        module.set_force_sum_reduction_for_comms(True)
    # Blocks with several residual streams return a view, which nothing changes in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    register_fsdp_forward_method(twin, "hidden")
    if isinstance(twin, StackModel):
        register_fsdp_forward_method(twin, "exit_logits")
    return twin


def _shard_empty(model: nn.Module, empty: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
    """Turn empty parameters into shards too, so that all parameters are of one type."""
    shards = {
        parameter: nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))
        for parameter in empty
    }
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter in shards:
                module.register_parameter(name, shards[parameter])


def shared_weights(model: nn.Module) -> set[nn.Parameter]:
    """The parameters used by several blocks, or by a block and another part, such as positions."""
    stacks = [stack for stack in model.modules() if isinstance(stack, Stack)]
    parts = [*(block for stack in stacks for block in stack.blocks.children())]
    parts += [child for child in model.children() if child not in stacks]
    uses = Counter(parameter for part in parts for parameter in part.parameters())
    return {parameter for parameter, n in uses.items() if n > 1}


def _check_shapes(model: nn.Module) -> None:
    """Raise `InputError` for a weight that is a single number."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise InputError(
                f"parallel.shard = true: {name} is a single number, which has no parts: use "
                "shard = false, or another norm"
            )


def empty(parameters: Iterable[nn.Parameter]) -> None:
    """Free the memory of parameters, but keep their shapes."""
    for parameter in parameters:
        parameter.data = without_memory(parameter.data)
