"""Waveform input: embeds the samples of a sound by convolutions (wav2vec 2.0, HuBERT)."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import zero_padding
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNormConfig, NoNorm
from addnorm.nn.patches import check_frames
from addnorm.nn.positions.position import Position
from addnorm.nn.types import Hidden

Frames = Float[Tensor, "batch channels frames"]
RealFrames = Bool[Tensor, "batch 1 frames"]


class NormOverTime(nn.Module):
    """`γ (z - mean_t z) / √(var_t z + ε) + β`: each channel over the real frames of its clip.

    The group norm of wav2vec 2.0 (Baevski et al. 2020, §4.2), which has a group for each channel.
    Where clips of several lengths share a batch, `transformers` counts their padding too; here a
    clip is embedded as if it were alone.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, z: Frames, real: RealFrames | None) -> Frames:
        wide = at_least_float32(z)
        share = torch.ones_like(wide[:, :1]) if real is None else real.to(wide.dtype)
        share = share / share.sum(-1, keepdim=True).clamp(min=1)
        centred = wide - (wide * share).sum(-1, keepdim=True)
        variance = (centred.square() * share).sum(-1, keepdim=True)
        normal = (centred * (variance + self.eps).rsqrt()).to(z.dtype)
        return normal * self.weight[:, None] + self.bias[:, None]


class NormOverChannels(nn.Module):
    """`γ (z - mean_c z) / √(var_c z + ε) + β`: the channels of each frame."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, z: Frames, real: RealFrames | None) -> Frames:
        return F.layer_norm(z.mT, self.weight.shape, self.weight, self.bias, self.eps).mT


class WaveformLayer(nn.Module):
    """`act(norm(W * z))`: a convolution without padding."""

    def __init__(self, conv: nn.Conv1d, norm: nn.Module | None, activation: Activation) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.activation = ACTIVATIONS[activation]

    def forward(
        self, z: Frames, lengths: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch features fewer"]:
        z = self.conv(z)
        real = None if lengths is None else frames_before(lengths, z.shape[-1])[:, None]
        return self.activation(z if self.norm is None else self.norm(z, real))

    def n_frames(self, n: int) -> int:
        """The number of frames that `n` input frames become."""
        return max(0, (n - self.conv.kernel_size[0]) // self.conv.stride[0] + 1)


class ConvolutionalPosition(nn.Module):
    """`act(W * x + b)` with `W = g V / ‖V‖` for each place of the kernel (Baevski et al. 2020, §2).

    Weight norm of Salimans & Kingma 2016, §2. An even kernel sees one frame more of the past.
    """

    def __init__(self, d_model: int, kernel: int, groups: int, activation: Activation) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(d_model, d_model // groups, kernel))
        nn.init.normal_(self.direction, std=(4 / (kernel * d_model)) ** 0.5)
        self.magnitude = nn.Parameter(torch.empty(kernel))
        with torch.no_grad():
            self.magnitude.copy_(self.direction.norm(dim=(0, 1)))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.groups = groups
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Hidden) -> Hidden:
        kernel = self.magnitude.shape[0]
        weight = self.direction * (self.magnitude / self.direction.norm(dim=(0, 1)))
        y = F.conv1d(x.mT, weight, self.bias, padding=kernel // 2, groups=self.groups)
        return self.activation(y[..., : x.shape[1]].mT)


class WaveformEmbedding(nn.Module):
    """`drop(norm(x + positions(x)))` with `x = W norm(z_n) + b`, `z_i = layer_i(z_{i-1})`.

    Baevski et al. 2020, §2; the convolutions make a frame of every 20 ms at 16,000 samples a
    second. The frames of padding are silent before positions, and take no part in any norm. The
    model's own `position` acts as well; wav2vec 2.0 has none.

    Raises `InputError` for several channels, for padding that is not on the right, and for a sound
    too short for one frame.
    """

    def __init__(
        self,
        d_model: int,
        settings: "WaveformEmbeddingConfig",
        *,
        position: Position,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(settings.layers())
        width, eps = settings.channels[-1], settings.eps
        norm = LayerNormConfig(eps=eps)
        self.projection_norm = norm.build(width) if settings.projection_norm else NoNorm()
        self.projection = Linear(width, d_model)
        self.convolution = ConvolutionalPosition(
            d_model, settings.position_kernel, settings.position_groups, settings.activation
        )
        self.norm = norm.build(d_model) if settings.norm else NoNorm()
        self.least = settings.least
        self.position = position
        self.dropout = Dropout(dropout)

    def forward(
        self,
        samples: Float[Tensor, "batch channels time"],
        valid: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Hidden, Context]:
        """Embed the samples and build their context; `valid` marks the real ones."""
        check_frames(samples, 1, valid)
        if samples.shape[-1] < self.least:
            raise InputError(
                f"a sound of {samples.shape[-1]} samples is too short: this model reads at least "
                f"{self.least}"
            )
        lengths = None if valid is None else valid.sum(-1)
        z = samples.to(self.projection.weight.dtype)
        z = z if valid is None else torch.where(valid[:, None], z, 0.0)
        for layer in self.layers:
            assert isinstance(layer, WaveformLayer)
            z = layer(z, None if lengths is None else shorter(lengths, layer))
            lengths = None if lengths is None else shorter(lengths, layer)
        real = None if lengths is None else frames_before(lengths, z.shape[-1])
        x = zero_padding(self.projection(self.projection_norm(z.mT)), real)
        ctx = Context.over(x, Full(), valid=real)
        x = self.norm(x + self.convolution(x))
        return zero_padding(self.dropout(self.position.embed(x, ctx)), real), ctx

    def valid_positions(self, valid: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch seq"]:
        """Whether each frame is real: all of its samples are."""
        lengths, n = valid.sum(-1), valid.shape[-1]
        for layer in self.layers:
            assert isinstance(layer, WaveformLayer)
            lengths, n = shorter(lengths, layer), layer.n_frames(n)
        return frames_before(lengths, n)


def shorter(lengths: Int[Tensor, " batch"], layer: WaveformLayer) -> Int[Tensor, " batch"]:
    """The number of output frames of a layer for these input lengths."""
    kernel, stride = layer.conv.kernel_size[0], layer.conv.stride[0]
    return ((lengths - kernel).div(stride, rounding_mode="floor") + 1).clamp(min=0)


def frames_before(lengths: Int[Tensor, " batch"], n: int) -> Bool[Tensor, "batch frames"]:
    """A mask of the first `lengths` of `n` frames."""
    return torch.arange(n, device=lengths.device) < lengths[:, None]


@config
class WaveformEmbeddingConfig:
    """The samples of a sound embedded by convolutions, as in wav2vec 2.0 and HuBERT.

    Baevski et al. 2020; `norm = false` and `layer_norms = "every"` are those of its large models.
    """

    kind: Literal["waveform"] = "waveform"
    channels: tuple[PositiveInt, ...] = (512,) * 7
    """The channels after each convolution."""
    kernels: tuple[PositiveInt, ...] = (10, 3, 3, 3, 3, 2, 2)
    """The kernel of each, in frames of the layer before."""
    strides: tuple[PositiveInt, ...] = (5, 2, 2, 2, 2, 2, 2)
    """The frames from one of its outputs to the next."""
    bias: bool = False
    """Whether convolutions have a bias."""
    layer_norms: Literal["first", "every"] = "first"
    """Whether the first convolution alone is normalised, each channel over time, or every one, over
    the channels of each frame.
    """
    activation: Activation = "gelu"
    """The nonlinearity after every convolution, also that of positions."""
    projection_norm: bool = True
    """Whether the channels are normalised before their map to d_model."""
    position_kernel: PositiveInt = 128
    """The kernel of the convolution that gives positions, in frames."""
    position_groups: PositiveInt = 16
    """The groups of that convolution, which must divide d_model."""
    norm: bool = True
    """Whether the embedded sound is normalised, as post-norm needs it."""
    eps: PositiveFloat = 1e-5
    """The ε of the norms after the convolutions."""

    def __post_init__(self) -> None:
        sizes = len(self.channels), len(self.kernels), len(self.strides)
        if len({*sizes}) != 1 or not self.channels:
            raise ValueError(
                "channels, kernels and strides have a number for each convolution, and are "
                f"{sizes[0]}, {sizes[1]} and {sizes[2]}: give as many of each"
            )

    @property
    def least(self) -> int:
        """The smallest number of samples that make a frame."""
        n = 1
        for kernel, stride in zip(reversed(self.kernels), reversed(self.strides), strict=True):
            n = (n - 1) * stride + kernel
        return n

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that this many samples take."""
        n = size[-1]
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            n = max(0, (n - kernel) // stride + 1)
        return n

    def layers(self) -> list[WaveformLayer]:
        """The convolutions with their norms."""
        before, layers = 1, list[WaveformLayer]()
        sizes = zip(self.channels, self.kernels, self.strides, strict=True)
        for i, (channels, kernel, stride) in enumerate(sizes):
            conv = nn.Conv1d(before, channels, kernel, stride=stride, bias=self.bias)
            nn.init.kaiming_normal_(conv.weight)
            norm = None
            if self.layer_norms == "every":
                norm = NormOverChannels(channels)
            elif i == 0:
                norm = NormOverTime(channels)
            layers.append(WaveformLayer(conv, norm, self.activation))
            before = channels
        return layers

    def build(self, d_model: int, position: Position, dropout: float) -> WaveformEmbedding:
        if d_model % self.position_groups:
            raise InputError(
                f"input.position_groups = {self.position_groups} does not divide d_model = "
                f"{d_model}: give 1, or another number that does"
            )
        return WaveformEmbedding(d_model, self, position=position, dropout=dropout)
