"""Patch embeddings of images and time series."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.deferred_init import truncated_normal_
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import zero_padding
from addnorm.nn.functional import at_least_float32
from addnorm.nn.instance_norm import Affine, InstanceNorm, InstanceNormName
from addnorm.nn.masks import Full
from addnorm.nn.norms import NoNorm, NormConfig, build_norm
from addnorm.nn.positions.position import Position
from addnorm.nn.types import Hidden


class PatchEmbedding(nn.Module):
    """`drop(position(norm([class; registers; W patches + b] + positions)))`: an image, row by row.

    Dosovitskiy et al. 2021, eq. 1. Learned positions are for the grid of an image of `size`; for
    one of another size they are interpolated (bicubic, §3.2). The model's own `position` acts as
    well; ViT has none. A second learned vector after the class token learns from a teacher
    (Touvron et al. 2021, DeiT, §4); registers have no position (Darcet et al. 2024, §3).

    Raises `InputError` for an image of other channels, or whose sides are not multiples of `patch`.
    """

    def __init__(
        self,
        d_model: int,
        settings: "PatchEmbeddingConfig",
        *,
        position: Position,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        patch, learned = settings.patch, settings.positions == "learned"
        self.patch = patch
        self.grid = (settings.size[0] // patch, settings.size[1] // patch) if learned else None
        self.antialias = settings.interpolation == "antialiased"
        self.position = position
        self.proj = nn.Conv2d(
            settings.channels, d_model, kernel_size=patch, stride=patch, bias=settings.bias
        )
        self.class_token = nn.Parameter(torch.zeros(d_model)) if settings.class_token else None
        self.distillation_token = (
            nn.Parameter(torch.zeros(d_model)) if settings.distillation_token else None
        )
        n_rows = settings.n_positions(settings.size) - settings.registers if learned else 0
        table = truncated_normal_(torch.empty(n_rows, d_model), 0.02)
        self.positions = nn.Parameter(table) if learned else None
        self.registers = None
        if settings.registers:
            registers = torch.empty(settings.registers, d_model)
            self.registers = nn.Parameter(truncated_normal_(registers, 0.02))
        self.norm = NoNorm() if settings.norm is None else build_norm(settings.norm, d_model)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> tuple[Hidden, Context]:
        """Embed the learned tokens and the patches, and build their context (without padding)."""
        check_images(images, self.proj.in_channels, valid)
        check_divides((images.shape[-2], images.shape[-1]), self.patch)
        patches = self.proj(images.to(self.dtype)).to(self.dtype)
        grid = patches.shape[-2], patches.shape[-1]
        x = patches.flatten(2).transpose(1, 2)
        tokens = (self.class_token, self.distillation_token)
        first = [token.expand(x.shape[0], 1, -1) for token in tokens if token is not None]
        x = torch.cat([*first, x], dim=1) if first else x
        if self.positions is not None:
            x = x + self.positions_of(*grid)
        if self.registers is not None:
            n = len(first)
            registers = self.registers.expand(x.shape[0], -1, -1)
            x = torch.cat([x[:, :n], registers, x[:, n:]], dim=1)
        x, ctx = as_sequence(self.norm(x), self.position, self.dropout)
        return x, replace(ctx, grid=grid)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.proj.weight.dtype

    def positions_of(self, rows: int, columns: int) -> Float[Tensor, "seq d_model"]:
        """The learned positions, interpolated to this grid, except those of learned tokens."""
        assert self.positions is not None
        assert self.grid is not None
        return interpolated(self.positions, self.grid, (rows, columns), antialias=self.antialias)


def interpolated(
    table: Float[Tensor, "rows d_model"],
    grid: tuple[int, int],
    wanted: tuple[int, int],
    *,
    antialias: bool = False,
) -> Float[Tensor, "seq d_model"]:
    """Interpolate the positions of a grid, in rows and columns, to the `wanted` grid (bicubic).

    Dosovitskiy et al. 2021, §3.2. Rows of the table before those of the grid are unchanged.
    """
    if grid == wanted:
        return table
    n_patches = grid[0] * grid[1]
    first, patches = table.split([len(table) - n_patches, n_patches])
    wide = at_least_float32(patches)
    image = wide.T.unflatten(1, grid)[None]
    image = F.interpolate(
        image, size=wanted, mode="bicubic", align_corners=False, antialias=antialias
    )
    return torch.cat([first, image[0].flatten(1).T.to(table.dtype)])


def check_divides(size: tuple[int, int], patch: int) -> None:
    """Raise `InputError`, naming the nearest valid size, if the patches do not tile the image."""
    height, width = size
    rows, columns = (max(1, round(side / patch)) for side in size)
    if (rows * patch, columns * patch) != size:
        raise InputError(
            f"an image of {height} × {width} does not divide into patches of {patch} × {patch}: "
            f"the nearest size that does is {rows * patch} × {columns * patch}"
        )


@config
class PatchEmbeddingConfig:
    """Images in square patches. `positions` are learned for images of `size` (height, width)."""

    kind: Literal["patches"] = "patches"
    size: tuple[PositiveInt, PositiveInt] = (224, 224)
    """Height and width, in pixels, of the images that learned positions are for."""
    channels: PositiveInt = 3
    """Values of a pixel: 3 for colours, 1 for grey."""
    patch: PositiveInt = 16
    """The side of a patch in pixels."""
    class_token: bool = True
    """Whether a learned vector stands before the patches, for a head to read."""
    distillation_token: bool = False
    """Whether a second one follows it, which learns from a teacher (DeiT: Touvron et al. 2021)."""
    registers: NonNegativeInt = 0
    """Learned vectors after these, without positions, in which the model keeps what belongs to no
    patch (Darcet et al. 2024).
    """
    positions: Literal["learned", "none"] = "learned"
    """Whether patches have learned positions, besides those of `model.position`."""
    interpolation: Literal["bicubic", "antialiased"] = "bicubic"
    """How learned positions become those of an image of another size: `antialiased` also
    averages where it has fewer patches.
    """
    bias: bool = True
    """Whether the map of patches has a bias."""
    norm: NormConfig | None = None
    """A norm of the embedded image, before dropout, as in CLIP; by default none."""

    def __post_init__(self) -> None:
        check_divides(self.size, self.patch)
        if self.distillation_token and not self.class_token:
            raise ValueError(
                "distillation_token = true follows a class token: give class_token = true with it"
            )

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that an image of this height and width takes."""
        learned = self.class_token + self.distillation_token + self.registers
        return (size[0] // self.patch) * (size[1] // self.patch) + learned

    def build(self, d_model: int, position: Position, dropout: float) -> PatchEmbedding:
        return PatchEmbedding(d_model, self, position=position, dropout=dropout)


Variables = Literal["mixed", "independent"]
"""Whether the variables of a series share a patch, or each is a series of its own."""


class SeriesEmbedding(nn.Module):
    """`drop(position(W p_i + b))`: patch `p_i` is the steps from `i · stride` on, `patch` of them.

    PatchTST (Nie et al. 2023, §3.1). The last value is repeated until it fills the last patch (the
    paper repeats it `stride` times, which adds a patch where the steps would fit), so no step is
    lost and a short series makes one patch. A patch holds all channels; with the paper's channel
    independence, each channel is a row of its own. `norm` normalises each window of each channel
    (Kim et al. 2022), and its statistics go along in the context, for a head to restore.

    Raises `InputError` for other channels, and for padding that is not on the right.
    """

    def __init__(
        self,
        d_model: int,
        *,
        channels: int,
        patch: int,
        stride: int,
        norm: InstanceNorm,
        variables: Variables = "mixed",
        position: Position,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.patch = patch
        self.stride = stride
        self.norm = norm
        self.rows = ROWS[variables]
        self.position = position
        in_a_row = channels if variables == "mixed" else 1
        self.proj = nn.Conv1d(in_a_row, d_model, kernel_size=patch, stride=stride)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        series: Float[Tensor, "batch channels time"],
        valid: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "rows seq d_model"], Context]:
        """Embed the patches and build their context; `valid` marks the real time steps."""
        check_frames(series, self.channels, valid)
        real = series.new_ones(series[:, 0].shape, dtype=torch.bool) if valid is None else valid
        series = torch.where(real[:, None], series, 0.0).to(self.proj.weight.dtype)
        series, statistics = self.norm(series, real[:, None])
        patches = self.proj(self.rows(self.filled(series, real)))
        x = patches.transpose(1, 2).to(self.proj.weight.dtype)
        fewer = None if valid is None else self.valid_positions(valid)
        if fewer is not None:
            fewer = fewer.repeat_interleave(self.channels // self.proj.in_channels, 0)
        x, ctx = as_sequence(x, self.position, self.dropout, fewer)
        return x, replace(ctx, statistics=statistics)

    def filled(
        self, series: Float[Tensor, "batch channels time"], valid: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch channels filled"]:
        """Pad the series with its last real value to fill the last patch."""
        width = (self.n_patches(series.shape[-1]) - 1) * self.stride + self.patch
        last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
        steps = torch.arange(width, device=series.device).minimum(last)
        return series.gather(-1, steps[:, None].expand(-1, series.shape[1], -1))

    def n_patches(self, n_steps: int) -> int:
        """The number of patches that cover `n_steps` time steps."""
        return n_patches(n_steps, self.patch, self.stride)

    def valid_positions(self, valid: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch seq"]:
        """Whether each patch is real: it has a real step that no earlier patch has."""
        slots = torch.arange(self.n_patches(valid.shape[1]), device=valid.device)
        held_before = (slots * self.stride + self.patch - self.stride) * (slots > 0)
        return held_before < valid.sum(-1, keepdim=True)


def n_patches(n_steps: int, patch: int, stride: int) -> int:
    """The number of patches that cover `n_steps` time steps."""
    return 1 + max(0, -(-(n_steps - patch) // stride))


def _all_channels(series: Tensor) -> Tensor:
    return series


def _one_channel(series: Tensor) -> Tensor:
    return series.flatten(0, 1)[:, None]


ROWS: dict[Variables, Callable[[Tensor], Tensor]] = {
    "mixed": _all_channels,
    "independent": _one_channel,
}


@config
class SeriesEmbeddingConfig:
    """Time series in patches of `patch` steps, a new one every `stride` (by default end to end)."""

    kind: Literal["series"] = "series"
    channels: PositiveInt = 1
    """Values of a time step."""
    patch: PositiveInt = 16
    """Time steps in a patch."""
    stride: PositiveInt | None = None
    """Time steps from one patch to the next; by default `patch`, so that none overlap."""
    norm: InstanceNormName = "none"
    """Whether each window of a channel is normalised first (Kim et al. 2022): `instance` takes
    its mean from it, `instance_last` its last value, and both divide by its deviation.
    """
    affine: Affine = "none"
    """Whether a learned gain and bias of each channel follow the norm."""
    variables: Variables = "mixed"
    """Whether a patch holds all channels, or each channel is a row of its own, all read by the same
    weights (channel independence: Nie et al. 2023, §3.1), as forecasts alone can.
    """
    look_back: PositiveInt | None = None
    """Time steps of the past that a forecast is made from."""

    @property
    def n_patches(self) -> int:
        """The number of patches of a window of `look_back` steps."""
        assert self.look_back is not None
        return self.n_positions([self.look_back])

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that a series of this many steps takes."""
        return n_patches(size[-1], self.patch, self.stride or self.patch)

    def __post_init__(self) -> None:
        if self.affine == "learned" and self.norm == "none":
            raise ValueError("affine = 'learned' follows a norm: give norm = 'instance' with it")
        if self.stride is not None and self.stride > self.patch:
            raise ValueError(
                f"stride = {self.stride} leaves out steps between patches of {self.patch}: "
                f"at most stride = {self.patch}"
            )

    def build(self, d_model: int, position: Position, dropout: float) -> SeriesEmbedding:
        return SeriesEmbedding(
            d_model,
            channels=self.channels,
            patch=self.patch,
            stride=self.stride or self.patch,
            norm=InstanceNorm(self.channels, self.norm, self.affine),
            variables=self.variables,
            position=position,
            dropout=dropout,
        )


# Shared by all input embeddings.


def as_sequence(
    x: Hidden, position: Position, dropout: Dropout, valid: Bool[Tensor, "batch seq"] | None = None
) -> tuple[Hidden, Context]:
    """`drop(position(x))`, zero at padding, with its context for a bidirectional stack."""
    ctx = Context.over(x, Full(), valid=valid)
    return zero_padding(dropout(position.embed(x, ctx)), valid), ctx


def check_images(images: Tensor, channels: int, valid: Tensor | None) -> None:
    """Raise `InputError` for a wrong shape, or padding."""
    if valid is not None:
        raise InputError("an image has no padding: valid must be None")
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise InputError(
            f"images must be floating-point numbers of shape (batch, {channels}, height, width), "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )


def check_frames(frames: Tensor, channels: int, valid: Tensor | None) -> None:
    """Raise `InputError` for a wrong shape, or padding that is not on the right."""
    shape = tuple(frames.shape)
    if len(shape) != 3 or shape[1] != channels or not shape[2] or not frames.is_floating_point():
        raise InputError(
            f"the input must be floating-point numbers of shape (batch, {channels}, time), "
            f"got {frames.dtype} of shape {shape}"
        )
    if valid is None:
        return
    if tuple(valid.shape) != (shape[0], shape[2]):
        raise InputError(f"valid must have shape {(shape[0], shape[2])}, got {tuple(valid.shape)}")
    if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
        raise InputError("padding must stand on the right: real steps first, then valid = False")
