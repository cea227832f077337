"""Tensors split over processes: whole tensors from parts, and parts of whole tensors.

A shard over the processes of `data` is torch's `DTensor`, whose import takes a second, and is left
to those who make them. A piece over those of `tensor` is a plain tensor, and its parameter knows
which piece it is; so a tensor that belongs to a parameter, such as its momentum, goes with it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from addnorm.models.weights import Weights, weights_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from addnorm.training.parallel.pieces import AnyPiece, Piece


def is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this tensor is a shard, with the others in other processes."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def name_pieces(model: nn.Module, pieces: "Mapping[str, AnyPiece]") -> None:
    """Record on each parameter of a model which piece it is."""
    for name, parameter in model.named_parameters():
        setattr(parameter, "piece", pieces.get(name))  # noqa: B010


def piece_of(parameter: Tensor) -> "AnyPiece | None":
    """The piece that a parameter is; None for a whole one that is equal in each process."""
    return getattr(parameter, "piece", None)


def piece_within_stage(parameter: Tensor) -> "Piece | None":
    """The piece that a parameter is within its stage; None if each process holds it whole."""
    piece = piece_of(parameter)
    return None if piece is None else piece.within


def whole_shape(parameter: Tensor) -> torch.Size:
    """The shape of the whole parameter."""
    piece = piece_of(parameter)
    return parameter.shape if piece is None else piece.shape_of_whole(parameter.shape)


def whole(tensor: Tensor, parameter: Tensor | None = None) -> Tensor:
    """The whole of a tensor, gathered if processes hold parts of it, as of a `parameter`."""
    full = tensor.full_tensor() if is_part(tensor) else tensor
    piece = None if parameter is None else piece_of(parameter)
    if piece is None or parameter is None or tensor.shape != parameter.shape:
        return full
    return piece.whole(full)


def like(tensor: Tensor, current: Tensor, parameter: Tensor | None = None) -> Tensor:
    """This process's part of `tensor`, split like `current`; the tensor itself if that is whole."""
    piece = None if parameter is None else piece_of(parameter)
    if piece is not None and tensor.shape == piece.shape_of_whole(current.shape):
        tensor = piece.of(tensor).clone(memory_format=torch.contiguous_format)
    if not is_part(current) or is_part(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    on_device = tensor.to(current.device)
    mesh, placements = current.device_mesh, current.placements
    return distribute_tensor(on_device, mesh, placements, src_data_rank=None)


def spread(weights: Mapping[str, Tensor], model: nn.Module) -> Weights:
    """This process's parts of whole weights, split as in the model."""
    parameters = dict(model.named_parameters())
    return {
        name: like(weights[name], current, parameters.get(name))
        for name, current in weights_of(model).items()
    }


@torch.no_grad()
def copy_parts(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy this process's part of each whole weight into the model, one at a time."""
    parameters = dict(model.named_parameters())
    for name, current in weights_of(model).items():
        current.copy_(like(weights[name], current, parameters.get(name)))


def start_of(tensor: Tensor, parameter: Tensor | None) -> tuple[int, ...]:
    """The index, on each axis of the whole, at which this process's part begins.

    It is split as a parameter is, if it is of the parameter's shape.
    """
    start = [0] * tensor.ndim
    if parameter is not None and tensor.shape == parameter.shape:
        piece = piece_within_stage(parameter)
        if piece is not None and piece.units > 1:
            start[piece.axis] = piece.bounds[0]
    if is_part(tensor):  # by rows, as `torch.chunk` splits them
        mesh = tensor.device_mesh
        rows = -(-len(tensor) // mesh.size())
        start[0] += min(len(tensor), mesh.get_local_rank() * rows)
    return tuple(start)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor: whole rows, which may be changed in place."""
    return tensor.to_local() if is_part(tensor) else tensor


def by_matrix(function: Callable[[Tensor], Tensor], matrices: Tensor, parameter: Tensor) -> Tensor:
    """Apply `function` to all matrices of shape `n rows columns`, each treated alone.

    Of matrices of which each process holds a part, as of the parameter, each process computes some
    matrices whole.
    """
    if not matrices.numel():  # those of another stage
        return matrices
    piece = piece_within_stage(parameter)
    if piece is not None and piece.units > 1:
        return like(_by_piece(function, whole(matrices), piece.behind(1)), matrices)
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


def _by_piece(function: Callable[[Tensor], Tensor], matrices: Tensor, piece: "Piece") -> Tensor:
    n = len(matrices)
    if n < piece.group.size:
        return piece.of(function(piece.whole(matrices)).to(matrices.dtype))
    share = replace(piece, axis=0, total=n, units=n)
    computed = function(share.of(piece.whole(matrices))).to(matrices.dtype)
    return piece.of(share.whole(computed))
