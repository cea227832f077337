"""Dropout, sum and norm at the end of a post-norm sublayer, by the fastest kernel (`choices`)."""

import torch
from torch import Tensor, nn

from addnorm.kernels.add_norm import DTYPES, OPERATOR, add_norm
from addnorm.kernels.build import is_loaded
from addnorm.nn.choices import choices, is_intercepted, takes_operators
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
        and takes_operators(f, x, *norm.parameters())
        and f.shape == x.shape
        and x.dtype is torch.float32
        and f.dtype in DTYPES
        and x.numel() >= MANY
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()  # which fuses these itself
        and choices().add_norm == "operator"
        and is_loaded(OPERATOR)
        and not any(map(is_intercepted, (norm, dropout)))
        and all(w.dtype is x.dtype for w in norm.parameters())
    )
