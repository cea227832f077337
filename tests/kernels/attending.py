"""Shared by the tests of attention's operators: inputs, and outputs with gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def gradients(attend: Attend, *inputs: Tensor) -> list[Tensor]:
    """The output, and the gradients of `q k v`, for the gradient of the output that comes last."""
    q, k, v, dy = (x.detach() for x in inputs)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    y = attend(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def inputs_of(
    batch: int, heads: int, q_seq: int, kv_seq: int, d_head: int, *, dtype: torch.dtype
) -> list[Tensor]:
    """`q k v` and the gradient of the output, with the heads of a token adjacent, as in a model."""
    lengths = (q_seq, kv_seq, kv_seq, q_seq)
    return [torch.randn(batch, n, heads, d_head).to(dtype).transpose(1, 2) for n in lengths]


def in_float64(inputs: list[Tensor], *, causal: bool, scale: float) -> list[Tensor]:
    """`gradients` by the definition in float64."""

    def define(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = scale * q @ k.mT
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return (scores.masked_fill(hidden, float("-inf")) if causal else scores).softmax(-1) @ v

    return gradients(define, *(x.double() for x in inputs))


def other_layouts(inputs: list[Tensor]) -> list[list[Tensor]]:
    """Heads one after another, rows of a wider matrix, and numbers that are not adjacent."""
    return [
        [x.contiguous() for x in inputs],
        [F.pad(x, (3, 2))[..., 3:-2] for x in inputs],
        [x.mT.contiguous().mT for x in inputs],
    ]
