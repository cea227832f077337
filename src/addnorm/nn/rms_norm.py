"""RMSNorm while a model trains on a CPU: its gradient by the kernel of LayerNorm.

torch has one kernel for the gradient of LayerNorm, and takes RMSNorm's in a dozen passes over the
memory, three times as long. With a mean of zero, LayerNorm's kernel gives
`r γg - x r³ mean(γg x) - r mean(γg)`, where `r = 1 / √(mean(x²) + ε)`: all that is wrong is its
last term, which is one number for each token.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.nn.choices import transformed

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


def rms_norm(
    x: Float[Tensor, "*batch d_model"], weight: Float[Tensor, " d_model"], eps: float
) -> Float[Tensor, "*batch d_model"]:
    """`γ x / √(mean(x²) + ε)`, by torch's own kernel where nothing is differentiated."""
    if _differentiated_on_cpu(x, weight):
        return _RMSNorm.apply(x, weight, eps)  # pyright: ignore[reportReturnType]
    return F.rms_norm(x, weight.shape, weight, eps)


def _differentiated_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether there will be a backward pass through float32 or float64 on a CPU, and no more."""
    return (
        torch.is_grad_enabled()
        and (x.requires_grad or weight.requires_grad)
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and not transformed()
    )


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        grad, d_model = grads[0], x.shape[-1]
        if torch.is_grad_enabled():  # it will be differentiated once more
            return *_differentiable(grad, x, weight, ctx.eps), None
        wanted = [*ctx.needs_input_grad[:2], False]
        of_x, of_weight, _ = _layer_norm_backward(
            grad, x, [d_model], torch.zeros_like(scale), scale, weight, None, wanted
        )
        if wanted[0]:
            with torch.autocast("cpu", enabled=False):
                of_x.add_((grad @ weight)[..., None].div_(d_model).mul_(scale))
        return of_x, of_weight, None


def _differentiable(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Both gradients by operations that have gradients themselves."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    weighed = grad * weight
    of_x = scale * weighed - x * scale**3 * (weighed * x).mean(-1, keepdim=True)
    return of_x, (grad * x * scale).reshape(-1, x.shape[-1]).sum(0)
