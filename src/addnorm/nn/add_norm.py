"""Dropout, sum and norm at the end of a post-norm sublayer, by the fastest kernel (`choices`)."""

import torch
from torch import Tensor, nn

from addnorm.kernels.add_norm import DTYPES, OPERATOR, add_norm
from addnorm.kernels.build import is_loaded
from addnorm.nn.choices import choices, transformed
from addnorm.nn.dropout import Dropout
from addnorm.nn.norms import LayerNorm, RMSNorm
from addnorm.nn.types import Hidden, Valid

MANY = 2**14
"""The number of values from which the operator is called: it takes longer to start."""


def normed_sum(
    f: Hidden, x: Hidden, norm: nn.Module, dropout: Dropout, valid: Valid | None
) -> Hidden:
    """`norm(x + drop(f))`; a mask of the operator is another than that of `Dropout`."""
    if not _by_operator(f, x, norm, dropout):
        return norm(x + dropout(f), valid)
    assert isinstance(norm, LayerNorm | RMSNorm)
    return add_norm(
        f,
        x,
        norm.weight,
        norm.bias if isinstance(norm, LayerNorm) else None,
        centred=isinstance(norm, LayerNorm),
        eps=norm.eps,
        p=dropout.p if dropout.training else 0.0,
    )


def _by_operator(f: Tensor, x: Tensor, norm: nn.Module, dropout: nn.Module) -> bool:
    return (
        type(norm) in (LayerNorm, RMSNorm)
        and type(dropout) is Dropout
        and type(f) is type(x) is Tensor  # no fake one, nor a part of one
        and f.shape == x.shape
        and x.device.type == "cpu"
        and x.dtype is torch.float32
        and f.dtype in DTYPES
        and x.numel() >= MANY
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not transformed()
        and choices().add_norm == "operator"
        and is_loaded(OPERATOR)
        and not any(_is_watched(module) for module in (norm, dropout))
        and all(type(w) is nn.Parameter and w.dtype is x.dtype for w in norm.parameters())
    )


def _is_watched(module: nn.Module) -> bool:
    """Whether a hook sees what this module computes."""
    return bool(
        module._forward_hooks  # pyright: ignore[reportPrivateUsage]
        or module._forward_pre_hooks  # pyright: ignore[reportPrivateUsage]
        or module._backward_hooks  # pyright: ignore[reportPrivateUsage]
        or module._backward_pre_hooks  # pyright: ignore[reportPrivateUsage]
    )
