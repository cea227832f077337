"""Tensors of which each process may hold a part: whole tensors of them, and parts of whole ones.

Parts are torch's `DTensor`, whose import takes a second, and is left to those who make them.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

from addnorm.models.weights import Weights, weights_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether other processes hold parts of this tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or the whole of which every process holds a shard."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's shard of `tensor`, as it holds one of `other`; else the tensor itself."""
    if not is_part(other) or is_part(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    on_device = tensor.to(other.device)
    return distribute_tensor(on_device, other.device_mesh, other.placements, src_data_rank=None)


def spread(weights: Weights, model: nn.Module) -> Weights:
    """This process's shares of whole weights, as it holds those of the model."""
    return {name: like(weights[name], current) for name, current in weights_of(model).items()}


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: whole rows, which may be changed in place."""
    return tensor.to_local() if is_part(tensor) else tensor


def by_matrix(function: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """`function(matrices)` of each matrix alone, of shape `n rows columns`.

    Of matrices of which each process holds some rows, each process computes some matrices whole.
    """
    if not is_part(matrices):
        return function(matrices)
    from torch.distributed.tensor import DTensor, Shard

    mine = matrices.redistribute(placements=[Shard(0)])
    parts = function(mine.to_local()).to(matrices.dtype)
    computed = DTensor.from_local(
        parts,
        mine.device_mesh,
        mine.placements,
        run_check=False,
        shape=mine.shape,
        stride=mine.stride(),
    )
    return computed.redistribute(placements=matrices.placements)
