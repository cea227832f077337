"""The weights of a model as a dictionary: parameters and running statistics, by name."""

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
"""Everything a model has learned, by name: parameters and running statistics of batch norms."""


def weights_of(model: nn.Module) -> Weights:
    """The parameters and persistent buffers of `model` by name; tied ones appear once."""
    persistent = model.state_dict().keys()
    named = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name in persistent}


def n_bytes(tensors: Iterable[Tensor]) -> int:
    """The size of some tensors in bytes."""
    return sum(tensor.nbytes for tensor in tensors)


@torch.no_grad()
def copy_into(model: nn.Module, weights: Weights) -> None:
    """Copy each of these `weights` into the model's weight with the same name.

    Raises `KeyError` if one is missing.
    """
    for name, current in weights_of(model).items():
        current.copy_(weights[name])
