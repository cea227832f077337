"""Position-wise feed-forward layers: plain (two matrices) or gated (three), clamped or not."""

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.activations import gated, gelu_tanh, squared_relu
from addnorm.nn.built import built_module
from addnorm.nn.dropout import Dropout
from addnorm.nn.functional import at_least_float32, quick_gelu, xielu
from addnorm.nn.linear import Linear
from addnorm.nn.splits import Split, Splits
from addnorm.parts import Family, is_ours, kind_of

Activation = Literal[
    "relu",
    "squared_relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "mish",
    "sigmoid",
    "tanh",
]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "squared_relu": squared_relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}

InnerActivation = Literal[Activation, "xielu"]
"""The activations of feed-forward layers: also one that learns two numbers in each layer."""

Inner = Float[Tensor, "*batch d_ff"]


class XIELU(nn.Module):
    """`α_p x² + β x` for positive x, else `α_n (exp(min(x, ε)) - 1 - x) + β x`.

    Huang et al. 2024 (arXiv 2411.13010). `α_p = log(1 + exp(alpha_p))` and `α_n = β + log(1 +
    exp(alpha_n))` are learned, and 0.8 at the start; β is 0.5, and ε is -1e-6. Computed in float32
    at least: near zero `exp(x) - 1 - x` is `x² / 2`, which is less than narrow types see.
    """

    splits: ClassVar[Splits] = {}
    beta: Tensor
    eps: Tensor

    def __init__(self) -> None:
        super().__init__()
        beta, start = 0.5, 0.8
        self.alpha_p = nn.Parameter(torch.tensor([start]).expm1().log())
        self.alpha_n = nn.Parameter(torch.tensor([start - beta]).expm1().log())
        self.register_buffer("beta", torch.tensor(beta))
        self.register_buffer("eps", torch.tensor(-1e-6))

    def forward(self, x: Inner) -> Inner:
        wide = at_least_float32(x)
        beta, eps, *alphas = (
            a.to(wide.dtype) for a in (self.beta, self.eps, self.alpha_p, self.alpha_n)
        )
        alpha_p, alpha_n = map(F.softplus, alphas)
        return xielu(wide, alpha_p, beta + alpha_n, beta, eps).to(x.dtype)


def build_activation(name: InnerActivation) -> Callable[[Tensor], Tensor]:
    """The function of this name, or a module that learns one."""
    return XIELU() if name == "xielu" else ACTIVATIONS[name]


class FeedForward(nn.Module):
    """`act(x W_up) W_down` (Vaswani et al. 2017, §3.3 with ReLU; Hendrycks & Gimpel 2016: GELU)."""

    output_weights = ("down_proj",)
    splits: ClassVar[Splits] = {
        "up_proj": Split(0),
        "down_proj": Split(1),
        "dropout": Split(-1, "d_ff"),
    }
    deepnorm_weights = ("up_proj", "down_proj")

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: InnerActivation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.activation = build_activation(activation)
        self.dropout = Dropout(dropout)

    @property
    def d_ff(self) -> int:
        """The inner width."""
        return self.up_proj.out_features

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.down_proj(self.dropout(self.activation(self.up_proj(x))))


@config
class FeedForwardConfig:
    """`d_ff` defaults to 4 × d_model."""

    kind: Literal["mlp"] = "mlp"
    d_ff: PositiveInt | None = None
    """The inner width; by default 4 d_model."""
    activation: InnerActivation = "relu"
    """The nonlinearity between the two maps; `xielu` learns two numbers in each layer."""
    bias: bool = True
    """Whether the two maps have biases."""
    dropout: Probability = 0.0
    """The dropout rate of the inner features."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One example for each activation function."""
        return {
            "mlp": cls(d_ff=6, activation="gelu"),
            "mlp_without_bias": cls(bias=False),
            **{f"mlp_{name}": cls(d_ff=6, activation=name) for name in get_args(InnerActivation)},
        }

    def build(self, d_model: int) -> FeedForward:
        return FeedForward(
            d_model,
            self.d_ff or 4 * d_model,
            activation=self.activation,
            bias=self.bias,
            dropout=self.dropout,
        )


class GatedFeedForward(nn.Module):
    """`(act(x W_gate) ⊙ x W_up) W_down` (Shazeer 2020): GLU, GEGLU, SwiGLU by the activation."""

    output_weights = ("down_proj",)
    splits: ClassVar[Splits] = {"gate_proj": Split(0), **FeedForward.splits}
    deepnorm_weights = ("gate_proj", "up_proj", "down_proj")

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: InnerActivation = "silu",
        bias: bool = False,
        out_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=bias)
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias if out_bias is None else out_bias)
        self.activation = build_activation(activation)
        self.dropout = Dropout(dropout)

    @property
    def d_ff(self) -> int:
        """The inner width."""
        return self.up_proj.out_features

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.down_proj(self.dropout(self.product(self.gate_proj(x), self.up_proj(x))))

    def product(self, gate: Inner, up: Inner) -> Inner:
        """`act(gate) ⊙ up`."""
        return gated(self.activation, gate, up)


@config
class GatedFeedForwardConfig:
    """`d_ff` defaults to 8/3 × d_model, which costs as much as an ungated 4 × d_model."""

    kind: Literal["gated"] = "gated"
    d_ff: PositiveInt | None = None
    """The inner width; by default 8/3 d_model, as costly as an ungated 4 d_model."""
    activation: InnerActivation = "silu"
    """The nonlinearity of the gate: `silu` is SwiGLU, `gelu` GeGLU."""
    bias: bool = False
    """Whether the three maps have biases."""
    out_bias: bool | None = None
    """Whether the last map has a bias; by default as the other two."""
    dropout: Probability = 0.0
    """The dropout rate of the inner features."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One example for each activation function."""
        return {
            "gated": cls(d_ff=6),
            "gated_with_bias": cls(bias=True),
            "gated_with_out_bias": cls(out_bias=True),
            **{f"gated_{name}": cls(d_ff=6, activation=name) for name in get_args(InnerActivation)},
        }

    def build(self, d_model: int) -> GatedFeedForward:
        return GatedFeedForward(
            d_model,
            self.d_ff or 8 * d_model // 3,
            activation=self.activation,
            bias=self.bias,
            out_bias=self.out_bias,
            dropout=self.dropout,
        )


class ClampedFeedForward(nn.Module):
    """`(act(min(x W_gate, c)) ⊙ (clip(x W_up, −c, c) + b)) W_down`: a gate of bounded inputs.

    OpenAI 2025 (arXiv 2508.10925), §2.2: `act(x) = x σ(1.702 x)`, `c = 7`, `b = 1`, with which the
    other half passes at zero.
    """

    output_weights = ("down_proj",)
    splits = GatedFeedForward.splits
    deepnorm_weights = GatedFeedForward.deepnorm_weights

    def __init__(self, d_model: int, d_ff: int, settings: "ClampedFeedForwardConfig") -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=settings.bias)
        self.up_proj = Linear(d_model, d_ff, bias=settings.bias)
        self.down_proj = Linear(d_ff, d_model, bias=settings.bias)
        self.activation = ACTIVATIONS[settings.activation]
        self.limit = settings.limit
        self.offset = settings.offset
        self.dropout = Dropout(settings.dropout)

    @property
    def d_ff(self) -> int:
        """The inner width."""
        return self.up_proj.out_features

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.down_proj(self.dropout(self.product(self.gate_proj(x), self.up_proj(x))))

    def product(self, gate: Inner, up: Inner) -> Inner:
        """`act(min(gate, c)) ⊙ (clip(up, −c, c) + b)`."""
        gate = self.activation(gate.clamp(max=self.limit))
        return gate * (up.clamp(-self.limit, self.limit) + self.offset)


@config
class ClampedFeedForwardConfig:
    """A gated feed-forward with clamped inner features; `d_ff` defaults to 8/3 × d_model."""

    kind: Literal["clamped"] = "clamped"
    d_ff: PositiveInt | None = None
    """The inner width; by default 8/3 d_model, as costly as an ungated 4 d_model."""
    activation: Activation = "quick_gelu"
    """The nonlinearity of the gate."""
    limit: PositiveFloat = 7.0
    """The largest input of the gate, and the largest size of what it multiplies."""
    offset: float = 1.0
    """The number added to what the gate multiplies."""
    bias: bool = True
    """Whether the three maps have biases."""
    dropout: Probability = 0.0
    """The dropout rate of the inner features."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """As in GPT-OSS, with a limit that small numbers reach; without offset and biases."""
        return {
            "clamped": cls(d_ff=6, limit=2.0),
            "clamped_silu": cls(limit=1.0, activation="silu", offset=0.0, bias=False),
        }

    def build(self, d_model: int) -> ClampedFeedForward:
        return ClampedFeedForward(d_model, self.d_ff or 8 * d_model // 3, self)


@runtime_checkable
class FeedForwardPart(Protocol):
    """A configuration of a feed-forward layer.

    The module it builds maps `[*batch, d_model]` to the same shape, each token independently.
    """

    def build(self, d_model: int) -> nn.Module: ...


DenseFeedForwardConfig = Annotated[
    FeedForwardConfig | GatedFeedForwardConfig | ClampedFeedForwardConfig | FeedForwardPart,
    Family("feedforward", FeedForwardPart),
]
"""Any dense feed-forward layer; `moe` defines the union that includes mixture of experts."""


def build_feedforward(feedforward: FeedForwardPart, d_model: int) -> nn.Module:
    """The layer of this width. Raises `InputError` if a custom part builds none, or a norm."""
    x = torch.zeros(2, 3, d_model)
    made = built_module(feedforward, feedforward.build(d_model), "feedforward(x)", (x,), x.shape)
    if not is_ours(type(feedforward)) and "valid" in signature(made.forward).parameters:
        raise InputError(
            f"{kind_of(feedforward)} builds {type(made).__name__}, which does not fit as "
            "feedforward: it takes valid, as a norm does. It would fit as norm"
        )
    return made
