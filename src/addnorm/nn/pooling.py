"""Pooling: one vector of a sequence of vectors, by its real tokens alone."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import WORD, WordOrTable, config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.deferred_init import truncated_normal_
from addnorm.nn.feedforward import ACTIVATIONS, Activation, FeedForwardConfig
from addnorm.nn.linear import Linear
from addnorm.nn.norms import LayerNormConfig, NormConfig, build_norm
from addnorm.nn.types import Hidden

RealTokens = Bool[Tensor, "batch seq 1"]
"""Which tokens are real."""

TokenPooling = Literal["mean", "max", "first", "last"]
"""The poolings without weights."""

Pooled = Float[Tensor, "batch d_model"]
"""A vector for each sequence."""


def real_tokens(x: Hidden, ctx: Context) -> RealTokens:
    """Which of the tokens `x` are real: all of them in a context without padding."""
    valid = x.new_ones(x.shape[:2], dtype=torch.bool) if ctx.valid is None else ctx.valid
    return valid[..., None]


def mean_of_tokens(x: Hidden, valid: RealTokens) -> Pooled:
    """The mean over the real tokens; zero if there are none."""
    return torch.where(valid, x, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def max_of_tokens(x: Hidden, valid: RealTokens) -> Pooled:
    """The maximum over the real tokens; zero if there are none."""
    highest = torch.where(valid, x, torch.finfo(x.dtype).min).amax(1)
    return torch.where(valid.any(1), highest, 0.0)


def first_token(x: Hidden, valid: RealTokens) -> Pooled:
    """The vector of the first real token."""
    first = valid.squeeze(-1).long().argmax(1)
    return x[torch.arange(x.shape[0], device=x.device), first]


def last_token(x: Hidden, valid: RealTokens) -> Pooled:
    """The vector of the last real token."""
    behind = valid.squeeze(-1).flip(1).long().argmax(1)
    return x[torch.arange(x.shape[0], device=x.device), x.shape[1] - 1 - behind]


POOLINGS: dict[TokenPooling, Callable[[Hidden, RealTokens], Pooled]] = {
    "mean": mean_of_tokens,
    "max": max_of_tokens,
    "first": first_token,
    "last": last_token,
}
"""Their functions."""


class SequencePooling(nn.Module):
    """`Σ_t a_t x_t` with `a = softmax_t(w x_t + b)`: the mean by weights that each token sets.

    SeqPool of Hassani et al. 2021, §3.3, over the real tokens; zero where there are none.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.score = Linear(d_model, 1)

    def forward(self, x: Hidden, valid: RealTokens) -> Pooled:
        x = torch.where(valid, x, 0.0)
        scores = self.score(x)
        scores = torch.where(valid, scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(1).to(x.dtype)  # of padding alone they are even, and x is zero
        return (weights.transpose(1, 2) @ x).squeeze(1)


class ConvolutionPooling(nn.Module):
    """`concat_k max_t act(b_k + Σ_{o<k} W_{k,o} x_{t+o})` over the windows of `k` tokens.

    Convolution and max-over-time pooling of Kim 2014, §2. A window may reach over either end of the
    text, where it sees zeros, as long as it holds a real token; his code pads all texts to one
    length and so sees windows of zeros alone, too. Zero where there is no real token.
    """

    def __init__(
        self,
        d_model: int,
        kernel_sizes: tuple[int, ...],
        channels: int,
        *,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv1d(d_model, channels, k) for k in kernel_sizes)
        self.kernel_sizes = kernel_sizes
        self.activation = ACTIVATIONS[activation]

    def forward(
        self, x: Hidden, valid: Bool[Tensor, "batch seq 1"]
    ) -> Float[Tensor, "batch features"]:
        # Tokens are neighbours whatever padding lies between them.
        order = (~valid).int().argsort(dim=1, stable=True)
        real = valid.gather(1, order).mT
        x = torch.where(valid, x, 0.0).gather(1, order.expand_as(x)).mT
        answers = [
            self._largest(
                conv, F.pad(x, (k - 1, k - 1)), F.pad(real, (k - 1, k - 1)).unfold(2, k, 1)
            )
            for conv, k in zip(self.conv, self.kernel_sizes, strict=True)
        ]
        return torch.where(real.any(2), torch.cat(answers, dim=1), 0.0)

    def _largest(
        self,
        conv: nn.Module,
        line: Float[Tensor, "batch d_model line"],
        windows: Bool[Tensor, "batch 1 windows kernel"],
    ) -> Float[Tensor, "batch channels"]:
        """The largest output of each filter over the windows with a real token."""
        answers = self.activation(conv(line))
        return torch.where(windows.any(3), answers, torch.finfo(answers.dtype).min).amax(2)


@config
class ConvolutionPoolingConfig:
    """Filters of several widths, each pooled to its largest output (Kim 2014, §2).

    The text becomes a vector of `channels` features for each kernel size. With `n_layers = 0` this
    is Kim's classifier.
    """

    kind: Literal["convolution"] = "convolution"
    kernel_size: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (3, 4, 5)
    """Tokens that a filter spans; several sizes stand side by side."""
    channels: PositiveInt = 100
    """Filters of each size."""
    activation: Activation = "relu"
    """The nonlinearity after the convolution."""

    @property
    def kernel_sizes(self) -> tuple[int, ...]:
        """The kernel sizes, also where there is one."""
        return self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,)

    @property
    def width(self) -> int:
        """The size of the vector."""
        return len(self.kernel_sizes) * self.channels

    def build(self, d_model: int) -> ConvolutionPooling:
        return ConvolutionPooling(
            d_model, self.kernel_sizes, self.channels, activation=self.activation
        )


class JoinedPooling(nn.Module):
    """`[x_1; …; x_n; mean(x_{n+m+1}, …)]` of the real tokens; zeros where there are fewer.

    DINOv2's classifier reads the class token and the mean of the patches, without the registers
    (Oquab et al. 2024, §7.1; Darcet et al. 2024); DeiT's both of its learned tokens (Touvron et al.
    2021, §4).
    """

    def __init__(self, n_first: int, n_skipped: int, rest: Literal["mean", "none"]) -> None:
        super().__init__()
        self.n_first, self.n_skipped, self.rest = n_first, n_skipped, rest

    def forward(self, x: Hidden, valid: RealTokens) -> Float[Tensor, "batch width"]:
        place = valid.cumsum(1) - valid.long()  # of each real token among the real ones
        parts = [torch.where(valid & (place == i), x, 0.0).sum(1) for i in range(self.n_first)]
        if self.rest == "mean":
            parts.append(mean_of_tokens(x, valid & (place >= self.n_first + self.n_skipped)))
        return torch.cat(parts, dim=-1)


@config
class JoinedPoolingConfig:
    """The first tokens side by side, and the mean of the rest, as DINOv2's classifier reads them.

    With `first = 2` and `rest = "none"` it is what DeiT's reads.
    """

    kind: Literal["joined"] = "joined"
    first: PositiveInt = 1
    """The tokens at the start whose vectors are taken as they are."""
    skipped: NonNegativeInt = 0
    """The tokens after these that the mean leaves out, such as registers."""
    rest: Literal["mean", "none"] = "mean"
    """Whether the mean of the other tokens follows."""

    @property
    def n_vectors(self) -> int:
        """The number of joined vectors."""
        return self.first + (self.rest == "mean")

    def build(self) -> JoinedPooling:
        return JoinedPooling(self.first, self.skipped, self.rest)


class AttentionPooling(nn.Module):
    """`u + FFN(norm(u))` with `u = W_o Σ_t softmax_t(q · W_k x_t / √d_head) W_v x_t`.

    A learned query `q`, the probe, attends to the real tokens with several heads (Lee et al. 2019,
    §3.2; SigLIP: Zhai et al. 2023, code). Zero where there are no real tokens.
    """

    def __init__(self, d_model: int, settings: "AttentionPoolingConfig") -> None:
        super().__init__()
        self.n_heads = settings.n_heads
        self.probe = nn.Parameter(truncated_normal_(torch.empty(d_model), 0.02))
        self.q_proj = Linear(d_model, d_model)
        self.k_proj = Linear(d_model, d_model)
        self.v_proj = Linear(d_model, d_model)
        self.out_proj = Linear(d_model, d_model)
        self.norm = build_norm(settings.norm, d_model)
        self.feedforward = settings.feedforward.build(d_model)

    def forward(self, x: Hidden, valid: RealTokens) -> Pooled:
        x = torch.where(valid, x, 0.0)
        q = self.q_proj(self.probe).unflatten(0, (self.n_heads, 1, -1)).expand(len(x), -1, -1, -1)
        k, v = (
            proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for proj in (self.k_proj, self.v_proj)
        )
        there = valid.any(1)
        mask = (valid | ~there[:, None]).mT[:, None]  # of padding alone, all: no row is empty
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        u = self.out_proj((scores.softmax(-1) @ v).flatten(1))
        return torch.where(there, u + self.feedforward(self.norm(u)), 0.0)


@config
class AttentionPoolingConfig:
    """A learned query that attends to all tokens, and a feed-forward layer, as in SigLIP.

    Multihead attention pooling: Lee et al. 2019, §3.2; Zhai et al. 2023.
    """

    kind: Literal["attention"] = "attention"
    n_heads: PositiveInt = 8
    """The heads of that attention, which divide the width."""
    norm: NormConfig = LayerNormConfig()
    """The norm before the feed-forward layer."""
    feedforward: Annotated[FeedForwardConfig, WORD] = FeedForwardConfig()
    """The layer that acts on what the query has gathered."""

    def build(self, d_model: int) -> AttentionPooling:
        if d_model % self.n_heads:
            nearest = max(n for n in range(1, self.n_heads) if d_model % n == 0)
            raise InputError(
                f"pooling.n_heads = {self.n_heads} does not divide d_model = {d_model}: the "
                f"nearest number that does is {nearest}"
            )
        return AttentionPooling(d_model, self)


PoolingTable = Annotated[
    ConvolutionPoolingConfig | JoinedPoolingConfig | AttentionPoolingConfig,
    Field(discriminator="kind"),
]
"""The poolings with settings."""

PoolingConfig = Annotated[
    Literal["mean", "max", "first", "last", "seqpool"] | PoolingTable, WordOrTable("convolution")
]
"""Any pooling: one without settings by its name, else its table."""


def pooled_width(pooling: PoolingConfig, d_model: int) -> int:
    """The width of the pooled vectors."""
    match pooling:
        case ConvolutionPoolingConfig():
            return pooling.width
        case JoinedPoolingConfig():
            return pooling.n_vectors * d_model
        case _:
            return d_model


def build_pooling(
    pooling: PoolingConfig, d_model: int
) -> tuple[nn.Module | Callable[[Hidden, RealTokens], Pooled], int]:
    """A pooling module, and the width of its vectors."""
    match pooling:
        case ConvolutionPoolingConfig() | AttentionPoolingConfig():
            built = pooling.build(d_model)
        case JoinedPoolingConfig():
            built = pooling.build()
        case "seqpool":
            built = SequencePooling(d_model)
        case _:
            built = POOLINGS[pooling]
    return built, pooled_width(pooling, d_model)
