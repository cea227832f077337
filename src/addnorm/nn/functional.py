"""Reference implementations: pure functions that follow the papers line by line."""

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

P = ParamSpec("P")
R = TypeVar("R")


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float64 for numbers in float64, float32 for all others."""
    return torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The numbers in float32, or unchanged where they are in float64."""
    return x.to(wide_dtype(x.dtype))


def scaled_dot_scores(
    q: Float[Tensor, "*batch q_seq d_head"], k: Float[Tensor, "*batch kv_seq d_head"]
) -> Float[Tensor, "*batch q_seq kv_seq"]:
    """`q kᵀ / √d_head` (Vaswani et al. 2017, §3.2.1): unit variance for unit-normal q and k."""
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def masked_softmax(
    scores: Float[Tensor, "*batch q_seq kv_seq"],
    allowed: Bool[Tensor, "*#batch #q_seq #kv_seq"] | None = None,
) -> Float[Tensor, "*batch q_seq kv_seq"]:
    """`softmax(scores)` over the allowed keys; a fully masked row is zero, with zero gradient.

    The softmax runs in at least float32. Scores outside `allowed` may have any value, including
    NaN.
    """
    wide = at_least_float32(scores)
    if allowed is None:
        return wide.softmax(-1).to(scores.dtype)
    # A finite floor, unlike -inf, keeps the gradient of an empty row at zero instead of NaN.
    floor = torch.finfo(wide.dtype).min
    weights = wide.masked_fill(~allowed, floor).softmax(-1).masked_fill(~allowed, 0.0)
    return weights.to(scores.dtype)


def layer_norm(
    x: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, " d_model"] | None = None,
    bias: Float[Tensor, " d_model"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d_model"]:
    """`γ (x - μ) / √(σ² + ε) + β` over the features, biased variance (Ba et al. 2016, eq. 3)."""
    wide = at_least_float32(x)
    centred = wide - wide.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, " d_model"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "*batch d_model"]:
    """`γ x / √(mean(x²) + ε)` over the features (Zhang & Sennrich 2019, eq. 4)."""
    wide = at_least_float32(x)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def moments(
    x: Float[Tensor, "*tokens d_model"], valid: Bool[Tensor, "*tokens"] | None = None
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]]:
    """Mean and biased variance of each feature over all real tokens, in at least float32.

    Both are zero if there is no real token. Values at padding have no effect.
    """
    wide = at_least_float32(x).reshape(-1, x.shape[-1])
    if valid is None:
        mean = wide.mean(0)
        return mean, (wide - mean).square().mean(0)
    real = valid.flatten()[:, None]
    n = real.sum().clamp(min=1)
    mean = torch.where(real, wide, 0.0).sum(0) / n
    return mean, torch.where(real, wide - mean, 0.0).square().sum(0) / n


def batch_norm(
    x: Float[Tensor, "*tokens d_model"],
    mean: Float[Tensor, " d_model"],
    variance: Float[Tensor, " d_model"],
    weight: Float[Tensor, " d_model"] | None = None,
    bias: Float[Tensor, " d_model"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*tokens d_model"]:
    """`γ (x - μ) / √(σ² + ε) + β` per feature (Ioffe & Szegedy 2015, alg. 1).

    In training μ and σ² are the batch's `moments`, at inference their running estimates.
    """
    wide = at_least_float32(x)
    y = (wide - mean) * torch.rsqrt(variance.to(wide.dtype) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype)


def scale_norm(
    x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, ""], eps: float = 1e-5
) -> Float[Tensor, "*batch d_model"]:
    """`g x / max(‖x‖, ε)`: every token vector has length g (Nguyen & Salazar 2019, §2.2)."""
    wide = at_least_float32(x)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (gain * wide / length.clamp(min=eps)).to(x.dtype)


def soft_capped(x: Float[Tensor, "*shape"], cap: float | None) -> Float[Tensor, "*shape"]:
    """`c tanh(x / c)`, bounded by ± c; `x` unchanged without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def squared_relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`max(x, 0)²` (So et al. 2021, Primer, §4)."""
    return torch.relu(x).square()


def xielu(
    x: Float[Tensor, "*shape"],
    alpha_p: Float[Tensor, " 1"],
    alpha_n: Float[Tensor, " 1"],
    beta: Float[Tensor, ""],
    eps: Float[Tensor, ""],
) -> Float[Tensor, "*shape"]:
    """`α_p x² + β x` for positive x, else `α_n (exp(min(x, ε)) - 1 - x) + β x`.

    Huang et al. 2024 (xIELU, arXiv 2411.13010); β is the slope at zero, and ε is just below zero.
    """
    exponential = alpha_n * (torch.expm1(torch.minimum(x, eps)) - x)
    return torch.where(x > 0, alpha_p * x * x, exponential) + beta * x


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x (1 + tanh u) / 2 = x σ(2u)`, `u = √(2/π) (x + 0.044715 x³)` (Hendrycks & Gimpel 2016, §2).

    On a CPU, a compiler makes a faster kernel of the logistic function than of tanh.
    """
    if is_compiled_for_cpu(x):
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return F.gelu(x, approximate="tanh")


def is_compiled_for_cpu(x: Tensor) -> bool:
    """Whether `torch.compile` is tracing for a CPU, and not to export a graph."""
    compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return compiling and x.device.type == "cpu"


def eagerly(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that a compiled model leaves its graph to call.

    Only a compiled model has torch's compiler imported for it, which takes most of a second.
    """
    if torch.compiler.is_compiling():
        return cast("Callable[P, R]", torch.compiler.disable(function))
    return function


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Mark a gradient that has no derivative: `create_graph=True` through it raises `RuntimeError`.

    torch's mark of this name leaves a second derivative out without a word where the gradient that
    arrives needs none itself, as that of a sum.
    """

    @wraps(backward)
    def of_first_order(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                f"{backward.__qualname__.split('.')[0].strip('_')} has no second derivative: "
                "compute it without create_graph=True, or by torch's own functions"
            )
        return backward(*args, **kwargs)

    return of_first_order


def quick_gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x σ(1.702 x)`, GELU by a logistic curve (Hendrycks & Gimpel 2016, §2)."""
    return x * torch.sigmoid(1.702 * x)
