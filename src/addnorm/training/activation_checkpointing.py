"""Activation checkpointing: the backward pass recomputes the activations of each block."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from addnorm.errors import InputError
from addnorm.nn.blocks import Stack
from addnorm.nn.norms import BatchNorm

Checkpointed = Literal["none", "block"]


@contextmanager
def checkpointed_activations(model: nn.Module, what: Checkpointed) -> Generator[None]:
    """In this context, training keeps only each block's input, not its activations.

    A network of n blocks then needs the memory of n inputs and of one block's activations, at the
    cost of another forward pass (Chen et al. 2016, §4). Losses, gradients and random numbers are
    the same to the bit; a compiled step does the same. Raises `InputError` for batch norms, whose
    running statistics would count every batch twice.
    """
    blocks = [
        block
        for stack in model.modules()
        if what == "block" and isinstance(stack, Stack)
        for block in stack.blocks
    ]
    if blocks and any(isinstance(module, BatchNorm) for module in model.modules()):
        raise InputError(
            "train.activation_checkpointing = 'block' with batchnorm would count every batch twice "
            "in its running statistics: use another norm, or leave it out"
        )
    for block in blocks:
        vars(block)["forward"] = _checkpointed(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        if torch.is_grad_enabled():
            return checkpoint(forward, *inputs, use_reentrant=False)
        return forward(*inputs)

    return run
