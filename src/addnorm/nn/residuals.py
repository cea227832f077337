"""Placements: how the norm and the residual connection wrap a sublayer (pre-norm, post-norm, …)."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from pydantic import FiniteFloat, PositiveFloat
from torch import nn

from addnorm.config import config
from addnorm.nn.add_norm import normed_sum
from addnorm.nn.built import built_module
from addnorm.nn.depth import Depth
from addnorm.nn.dropout import Dropout
from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig
from addnorm.nn.norms import NoNorm, NormConfig, build_norm
from addnorm.nn.types import Hidden, Valid
from addnorm.parts import Family

Sublayer = Callable[[Hidden], Hidden]


class PostNorm(nn.Module):
    """`norm(x + drop(f(x)))`: the original Transformer and BERT (Vaswani et al. 2017, §3.1)."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        return normed_sum(f(x), x, self.norm, self.dropout, valid)


@config
class PostNormConfig:
    """The norm after the sum."""

    kind: Literal["post"] = "post"

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> PostNorm:
        return PostNorm(build_norm(norm, d_model), dropout)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm: none, since every sublayer already ends in a norm."""
        return NoNorm()


class PreNorm(nn.Module):
    """`x + drop(f(norm(x)))`: GPT-2, LLaMA, ViT (Xiong et al. 2020, fig. 1b); an identity path.

    With a `scale`, `x + scale · drop(f(norm(x)))`: Granite (IBM 2024).
    """

    def __init__(self, norm: nn.Module, dropout: float = 0.0, *, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.scale = None if scale == 1.0 else scale

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        y = self.dropout(f(self.norm(x, valid)))
        return x + (y if self.scale is None else self.scale * y)


@config
class PreNormConfig:
    """The norm before the sublayer.

    `first = false` leaves the very first one out, for embeddings with a norm of their own
    (ModernBERT: Warner et al. 2024, §2.1). `scale` multiplies what a sublayer adds.
    """

    kind: Literal["pre"] = "pre"
    first: bool = True
    """Whether the very first sublayer has its norm; false for embeddings that are normed
    already.
    """
    scale: PositiveFloat = 1.0
    """The factor of what every sublayer adds; below one in Granite."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With and without the very first norm, and with a factor."""
        return {
            "pre": cls(),
            "pre_without_first": cls(first=False),
            "pre_scaled": cls(scale=0.25),
        }

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> PreNorm:
        return PreNorm(build_norm(norm, d_model), dropout, scale=self.scale)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm, since the residual stream itself is not normalised."""
        return build_norm(norm, d_model)


class LayerScale(nn.Module):
    """`x + λ ⊙ drop(f(norm(x)))`: pre-norm with a learned factor λ of each feature.

    Touvron et al. 2021 (arXiv 2103.17239), §2, eq. 4; DINOv2. Every λ begins at `start`: near zero,
    a deep stack begins as the identity.
    """

    def __init__(
        self, norm: nn.Module, dropout: float = 0.0, *, d_model: int, start: float = 1e-5
    ) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.layer_scale = nn.Parameter(torch.full((d_model,), start))

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        return x + self.layer_scale * self.dropout(f(self.norm(x, valid)))


@config
class LayerScaleConfig:
    """The norm before the sublayer, and a learned factor of each feature that it adds."""

    kind: Literal["layer_scale"] = "layer_scale"
    start: FiniteFloat = 1e-5
    """The factors at the start: 0.1 for 12 layers, 1e-5 for 24, 1e-6 for more (CaiT)."""

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> LayerScale:
        return LayerScale(build_norm(norm, d_model), dropout, d_model=d_model, start=self.start)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm, since the residual stream itself is not normalised."""
        return build_norm(norm, d_model)


class SandwichNorm(nn.Module):
    """`x + drop(norm_out(f(norm_in(x))))`: CogView (Ding et al. 2021, §2.4), Gemma 2.

    Without `norm_in`, `x + drop(norm(f(x)))`: OLMo 2 (OLMo Team 2024, §3.2), after Swin v2 (Liu et
    al. 2022, §3.2). With a `layer_factor` s, `s · (x + …)`: Gemma 4 (Google 2026), where it is
    held constant; here it is learned.
    """

    def __init__(
        self,
        norm_in: nn.Module,
        norm_out: nn.Module,
        dropout: float = 0.0,
        *,
        with_factor: bool = False,
    ) -> None:
        super().__init__()
        self.norm_in = norm_in
        self.norm_out = norm_out
        self.dropout = Dropout(dropout)
        self.layer_factor = nn.Parameter(torch.ones(1)) if with_factor else None

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        y = x + self.dropout(self.norm_out(f(self.norm_in(x, valid)), valid))
        return y if self.layer_factor is None else y * self.layer_factor.to(y.dtype)


@config
class SandwichNormConfig:
    """A norm before the sublayer and one after it, both inside the residual.

    `norms = "output"` has the second alone (OLMo 2).
    """

    kind: Literal["sandwich"] = "sandwich"
    norms: Literal["both", "output"] = "both"
    """Whether the input of a sublayer has a norm as its output has."""
    layer_factor: bool = False
    """Whether every layer ends with a product of its states and one learned number, one at the
    start.
    """

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Both norms, only the output's norm, and a factor for each layer."""
        return {
            "sandwich": cls(),
            "sandwich_output_norm": cls(norms="output"),
            "sandwich_layer_factor": cls(layer_factor=True),
        }

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> SandwichNorm:
        norm_in = build_norm(norm, d_model) if self.norms == "both" else NoNorm()
        with_factor = self.layer_factor and depth.ends_layer
        return SandwichNorm(norm_in, build_norm(norm, d_model), dropout, with_factor=with_factor)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm, since the residual stream itself is not normalised."""
        return build_norm(norm, d_model)


class DeepNorm(nn.Module):
    """`norm(α x + drop(f(x)))`, stable to a thousand layers (Wang et al. 2022, fig. 2).

    `gain` is the β by which `initialise` multiplies value, output and feed-forward weights.
    """

    def __init__(
        self, norm: nn.Module, dropout: float = 0.0, *, alpha: float = 1.0, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.alpha = alpha
        self.gain = gain

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        return self.norm(self.alpha * x + self.dropout(f(x)), valid)


@config
class DeepNormConfig:
    """Post-norm with a wider residual; α and β follow from the number of layers.

    - an encoder or a decoder of N layers alone: α = (2N)^¼, β = (8N)^-¼;
    - an encoder of N layers with a decoder of M: α = 0.81 (N⁴M)^(1/16), β = 0.87 (N⁴M)^(-1/16);
    - that decoder: α = (3M)^¼, β = (12M)^-¼.
    """

    kind: Literal["deepnorm"] = "deepnorm"

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> DeepNorm:
        alpha, beta = deepnorm_constants(depth)
        return DeepNorm(build_norm(norm, d_model), dropout, alpha=alpha, gain=beta)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm: none, since every sublayer already ends in a norm."""
        return NoNorm()


def deepnorm_constants(depth: Depth) -> tuple[float, float]:
    """α and β of Wang et al. 2022, fig. 2, by the depth of the model."""
    n, m = depth.encoder, depth.decoder
    if not n or not m:
        return (2 * (n or m)) ** 0.25, (8 * (n or m)) ** -0.25
    if depth.causal:
        return (3 * m) ** 0.25, (12 * m) ** -0.25
    return 0.81 * (n**4 * m) ** 0.0625, 0.87 * (n**4 * m) ** -0.0625


class Branch(nn.Module):
    """`drop(f(norm(x)))`: one of the sublayers that a parallel block sums."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Hidden, f: Sublayer, valid: Valid | None = None) -> Hidden:
        return self.dropout(f(self.norm(x, valid)))


@config
class ParallelConfig:
    """`x + attention(norm(x)) + feedforward(norm(x))`: the sublayers in parallel.

    `norms = "one"` shares a norm (GPT-J, PaLM: Chowdhery et al. 2022, §2), `"each"` gives every
    sublayer its own (GPT-NeoX: Black et al. 2022, §2.1).
    """

    kind: Literal["parallel"] = "parallel"
    norms: Literal["one", "each"] = "one"
    """Whether attention and feed-forward share one norm, or each have their own."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One shared norm, or one for each branch."""
        return {"parallel": cls(), "parallel_norm_each": cls(norms="each")}

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> Branch:
        return Branch(build_norm(norm, d_model) if self.norms == "each" else NoNorm(), dropout)

    def build_shared(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The norm shared by all branches, or none if each has its own."""
        return build_norm(norm, d_model) if self.norms == "one" else NoNorm()

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm, since the residual stream itself is not normalised."""
        return build_norm(norm, d_model)


@runtime_checkable
class ResidualPart(Protocol):
    """A configuration of a placement.

    The module that `build` makes for each sublayer is called as `residual(x, f, valid)`, where `f`
    is the sublayer; `build_final` makes the norm after the last layer, called as `norm(x, valid)`.
    `depth.layer` counts from 0.
    """

    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> nn.Module: ...

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """The final norm, after the last layer."""
        ...


ResidualConfig = Annotated[
    PostNormConfig
    | PreNormConfig
    | LayerScaleConfig
    | SandwichNormConfig
    | DeepNormConfig
    | ParallelConfig
    | HyperConnectionsConfig
    | ManifoldConnectionsConfig
    | ResidualPart,
    Family("placement", ResidualPart),
]
"""Any placement, built-in or custom."""


def build_placement(
    placement: ResidualConfig, d_model: int, norm: NormConfig, dropout: float, depth: Depth
) -> nn.Module:
    """The placement of a sublayer. Raises `InputError` if a custom part builds none."""
    x = torch.zeros(2, 3, d_model)
    made = placement.build(d_model, norm, dropout, depth)
    inputs = (x, nn.Identity(), None)
    return built_module(placement, made, "placement(x, f, valid)", inputs, x.shape)


def build_final_norm(placement: ResidualConfig, d_model: int, norm: NormConfig) -> nn.Module:
    """The final norm. Raises `InputError` if a custom placement builds no module."""
    x = torch.zeros(2, 3, d_model)
    made = placement.build_final(d_model, norm)
    return built_module(placement, made, "build_final(x, valid)", (x, None), x.shape)
