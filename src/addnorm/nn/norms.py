"""Normalisation layers; statistics are in float32 whatever the dtype of the input.

Every norm takes the hidden states and a mask of the real tokens; only BatchNorm uses the mask.
"""

import math
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.built import built_module
from addnorm.nn.choices import transformed
from addnorm.nn.functional import at_least_float32, batch_norm, moments, scale_norm
from addnorm.nn.types import TokenVectors
from addnorm.parts import Family

ValidTokens = Bool[Tensor, "*tokens"]


class LayerNorm(nn.Module):
    """`γ (x - μ) / √(σ² + ε) + β` over the features of each token.

    Ba et al. 2016, eq. 3; biased variance, ε inside the root. `bias=False` leaves β out, and
    `gain=False` γ (Groeneveld et al. 2024, OLMo, §2.1).
    """

    def __init__(
        self, d_model: int, *, eps: float = 1e-5, bias: bool = True, gain: bool = True
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model)) if gain else None
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if weight is None and bias is not None:  # torch's kernel then gives β no gradient
            return F.layer_norm(x, bias.shape, eps=self.eps) + bias
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)


class OffsetLayerNorm(nn.Module):
    """`(1 + γ) (x - μ) / √(σ² + ε) + β`, γ from zero: Nemotron (Parmar et al. 2024, §2.1).

    As in `OffsetRMSNorm`, weight decay pulls the gain towards one, not zero.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        wide = at_least_float32(x)
        gain = 1.0 + self.weight.to(wide.dtype)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        return F.layer_norm(wide, gain.shape, gain, bias, self.eps).to(x.dtype)


@config
class LayerNormConfig:
    """`bias = false` leaves β out; `gain` chooses the form of γ."""

    kind: Literal["layernorm"] = "layernorm"
    eps: PositiveFloat = 1e-5
    """ε, added to the variance against division by zero."""
    bias: bool = True
    """Whether β is learned, or left out."""
    gain: Literal["learned", "offset", "none"] = "learned"
    """Whether the gain is learned, learned as its distance from one, or left out."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With and without β; with γ, with `1 + γ`, and without."""
        return {
            "layernorm": cls(),
            "layernorm_without_bias": cls(bias=False, eps=0.1),
            "layernorm_offset_gain": cls(gain="offset", eps=0.1),
            "layernorm_without_gain": cls(gain="none"),
            "layernorm_without_weights": cls(bias=False, gain="none"),
        }

    def build(self, d_model: int) -> LayerNorm | OffsetLayerNorm:
        if self.gain == "offset":
            return OffsetLayerNorm(d_model, eps=self.eps, bias=self.bias)
        return LayerNorm(d_model, eps=self.eps, bias=self.bias, gain=self.gain == "learned")


_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


def rms_norm(
    x: Float[Tensor, "*batch d_model"], weight: Float[Tensor, " d_model"] | None, eps: float
) -> Float[Tensor, "*batch d_model"]:
    """`γ x / √(mean(x²) + ε)`, by torch's own kernel where nothing is differentiated."""
    if _differentiated_on_cpu(x, weight):
        return _RMSNorm.apply(x, weight, eps)  # pyright: ignore[reportReturnType]
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _differentiated_on_cpu(x: Tensor, weight: Tensor | None) -> bool:
    """Whether only plain autograd will differentiate this, in float32 or float64 on a CPU."""
    weights = [] if weight is None else [weight]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in (x, *weights))
        and x.device.type == "cpu"
        and all(tensor.dtype == x.dtype for tensor in weights)
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and not transformed()
    )


class _RMSNorm(torch.autograd.Function):
    """RMSNorm with its gradient by LayerNorm's kernel.

    torch computes this gradient in a dozen passes over the memory, which take three times as long.
    With a mean of zero, LayerNorm's kernel gives `r γg - x r³ mean(γg x) - r mean(γg)`, where
    `r = 1 / √(mean(x²) + ε)`. RMSNorm's gradient lacks the last term, one number for each token.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return x * scale if weight is None else (x * scale).mul_(weight)

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
                total = grad.sum(-1) if weight is None else grad @ weight
                of_x.add_(total[..., None].div_(d_model).mul_(scale))
        return of_x, None if weight is None else of_weight, None


def _differentiable(
    grad: Tensor, x: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Both gradients, by operations that can be differentiated again."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    weighed = grad if weight is None else grad * weight
    of_x = scale * weighed - x * scale**3 * (weighed * x).mean(-1, keepdim=True)
    if weight is None:
        return of_x, None
    return of_x, (grad * x * scale).reshape(-1, x.shape[-1]).sum(0)


class RMSNorm(nn.Module):
    """`γ x / √(mean(x²) + ε)` over the features of each token (Zhang & Sennrich 2019, eq. 4).

    `gain=False` leaves γ out.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6, gain: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model)) if gain else None

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return rms_norm(x, weight, self.eps)


@config
class RMSNormConfig:
    """RMSNorm: no mean and no bias; `gain = "none"` leaves γ out too."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: PositiveFloat = 1e-6
    """ε, added to the mean square against division by zero."""
    gain: Literal["learned", "none"] = "learned"
    """Whether the gain is learned, or left out."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With and without γ."""
        return {"rmsnorm": cls(), "rmsnorm_without_gain": cls(gain="none", eps=0.1)}

    def build(self, d_model: int) -> RMSNorm:
        return RMSNorm(d_model, eps=self.eps, gain=self.gain == "learned")


class OffsetRMSNorm(nn.Module):
    """`(1 + γ) x / √(mean(x²) + ε)`, γ from zero: Gemma (Gemma Team 2024).

    Kept as its distance from one, the gain stays exact in narrow types, and weight decay pulls it
    towards one, not zero.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        wide = at_least_float32(x)
        gain = 1.0 + self.weight.to(wide.dtype)
        return rms_norm(wide, gain, self.eps).to(x.dtype)


@config
class OffsetRMSNormConfig:
    """RMSNorm whose gain is stored as its difference from one."""

    kind: Literal["offset_rmsnorm"] = "offset_rmsnorm"
    eps: PositiveFloat = 1e-6
    """ε, added to the mean square against division by zero."""

    def build(self, d_model: int) -> OffsetRMSNorm:
        return OffsetRMSNorm(d_model, eps=self.eps)


class ScaleNorm(nn.Module):
    """`g x / max(‖x‖, ε)` with one learned g for all features (Nguyen & Salazar 2019, §2.2).

    g starts at √d_model, which is RMSNorm with a gain of one.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.tensor(math.sqrt(d_model)))

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        return scale_norm(x, self.weight, self.eps)


@config
class ScaleNormConfig:
    """ScaleNorm: all tokens have one learned length."""

    kind: Literal["scalenorm"] = "scalenorm"
    eps: PositiveFloat = 1e-5
    """ε, the smallest divisor."""

    def build(self, d_model: int) -> ScaleNorm:
        return ScaleNorm(d_model, eps=self.eps)


class BatchNorm(nn.Module):
    """`γ (x - μ) / √(σ² + ε) + β` per feature, over all real tokens of the batch.

    Ioffe & Szegedy 2015, alg. 1 and 2. In training μ and σ² (biased) are those of the batch,
    padding left out; at inference running estimates of them (of σ², the unbiased) that each batch
    moves by `momentum`; one of fewer than two real tokens does not. So in training a token's
    output depends on its batch-mates and, even under a causal mask, on later tokens. Padding
    counts as zero. Raises `ValueError` in training on more than one process.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, d_model: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        x = x if valid is None else torch.where(valid[..., None], x, 0.0)
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = self.observe(x, valid)
        return batch_norm(x, mean, variance, self.weight, self.bias, self.eps)

    def observe(self, x: TokenVectors, valid: ValidTokens | None) -> tuple[Tensor, Tensor]:
        """Return the statistics of the batch and update the running statistics."""
        if (n_processes := _world_size()) > 1:
            raise ValueError(
                f"batchnorm on {n_processes} processes would normalise by the statistics of one "
                "process only, not of the batch: train on 1, or choose a norm per token"
            )
        mean, variance = moments(x, valid)
        n = x.new_ones(x.shape[:-1], dtype=torch.bool).sum() if valid is None else valid.sum()
        unbiased = variance.detach() * n / (n - 1).clamp(min=1)
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            moved = running.lerp(new.detach().to(running.dtype), self.momentum)
            running.copy_(torch.where(n > 1, moved, running))
        return mean, variance


def _world_size() -> int:
    joined = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if joined else 1


@config
class BatchNormConfig:
    """BatchNorm; `momentum` is the weight of the newest batch in the running statistics."""

    kind: Literal["batchnorm"] = "batchnorm"
    eps: PositiveFloat = 1e-5
    """ε, added to the variance against division by zero."""
    momentum: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """The share of the newest batch in the running statistics."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Two values of the momentum."""
        return {"batchnorm": cls(), "batchnorm_half_new": cls(momentum=0.5)}

    def build(self, d_model: int) -> BatchNorm:
        return BatchNorm(d_model, eps=self.eps, momentum=self.momentum)


class DynamicTanh(nn.Module):
    """`γ ⊙ tanh(α x) + β`: no statistics, α one learned number (Zhu et al. 2025, §4)."""

    def __init__(self, d_model: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        alpha, weight, bias = (p.to(x.dtype) for p in (self.alpha, self.weight, self.bias))
        return weight * torch.tanh(alpha * x) + bias


@config
class DynamicTanhConfig:
    """Dynamic Tanh, without statistics; `alpha` is the initial value of α."""

    kind: Literal["dynamic_tanh"] = "dynamic_tanh"
    alpha: PositiveFloat = 0.5
    """The initial value of α."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Two initial values of α."""
        return {"dynamic_tanh": cls(), "dynamic_tanh_steep": cls(alpha=2.0)}

    def build(self, d_model: int) -> DynamicTanh:
        return DynamicTanh(d_model, alpha=self.alpha)


class DynamicErf(nn.Module):
    """`γ ⊙ erf(α x + s) + β`: no statistics, α and s two learned numbers.

    Derf (Chen et al. 2025, arXiv 2512.10938); `s` starts at 0.
    """

    def __init__(self, d_model: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.shift = nn.Parameter(torch.tensor(0.0))
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        learned = (self.alpha, self.shift, self.weight, self.bias)
        alpha, shift, weight, bias = (p.to(x.dtype) for p in learned)
        return weight * torch.erf(alpha * x + shift) + bias


@config
class DynamicErfConfig:
    """Dynamic erf (Derf), without statistics; `alpha` is the initial value of α."""

    kind: Literal["dynamic_erf"] = "dynamic_erf"
    alpha: PositiveFloat = 0.5
    """The initial value of α."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Two initial values of α."""
        return {"dynamic_erf": cls(), "dynamic_erf_steep": cls(alpha=2.0)}

    def build(self, d_model: int) -> DynamicErf:
        return DynamicErf(d_model, alpha=self.alpha)


class NoNorm(nn.Module):
    """`x`: the identity, where no norm is wanted."""

    def forward(self, x: TokenVectors, valid: ValidTokens | None = None) -> TokenVectors:
        return x


Norm = (
    LayerNorm
    | OffsetLayerNorm
    | RMSNorm
    | OffsetRMSNorm
    | ScaleNorm
    | BatchNorm
    | DynamicTanh
    | DynamicErf
    | NoNorm
)
"""Any built-in norm module."""


@runtime_checkable
class NormPart(Protocol):
    """A configuration of a norm over the last axis, of width `d_model` (of a head, for `qk_norm`).

    The module it builds is called as `norm(x, valid)`: `x` is `[*tokens, d_model]`, and `valid` (or
    None) marks the real tokens.
    """

    def build(self, d_model: int) -> nn.Module: ...


NormConfig = Annotated[
    LayerNormConfig
    | RMSNormConfig
    | OffsetRMSNormConfig
    | ScaleNormConfig
    | BatchNormConfig
    | DynamicTanhConfig
    | DynamicErfConfig
    | NormPart,
    Family("norm", NormPart),
]
"""Any norm, built-in or custom."""


def build_norm(norm: NormConfig, d_model: int) -> nn.Module:
    """The norm of this width. Raises `InputError` if a custom part builds none."""
    x = torch.zeros(2, 3, d_model)
    return built_module(norm, norm.build(d_model), "norm(x, valid)", (x, None), x.shape)
