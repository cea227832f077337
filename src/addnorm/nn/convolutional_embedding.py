"""A convolutional stem for images, whose feature map gives the tokens in place of patches."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.deferred_init import truncated_normal_
from addnorm.nn.dropout import Dropout
from addnorm.nn.patches import as_sequence, check_images, interpolated
from addnorm.nn.positions.position import Position
from addnorm.nn.types import Hidden


class ConvolutionalEmbedding(nn.Module):
    """`drop(position(z_n + positions))`, with `z_i = maxpool(relu(W_i * z_{i-1}))` of an image.

    The tokenizer of the Compact Convolutional Transformer (Hassani et al. 2021, §3.2): each layer
    is a convolution without bias that keeps the size, and the maximum of every 3 × 3 pixels, two
    apart, which halves it. The pixels that are left are the tokens, row by row; there is no class
    token. `grid` is the rows and columns of tokens that `positions` are learned for, None leaves
    them out; for an image of another size they are interpolated. The model's own
    `position` acts as well.

    Raises `InputError` for an image of other channels, or too small to be halved so often.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        *,
        kernel: int,
        grid: tuple[int, int] | None,
        position: Position,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.position = position
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
            for before, after in pairwise(widths)
        )
        for layer in self.convolutions:
            assert isinstance(layer, nn.Conv2d)
            nn.init.kaiming_normal_(layer.weight)  # He et al. 2015, as in the authors' code
        n_rows = 0 if grid is None else grid[0] * grid[1]
        table = truncated_normal_(torch.empty(n_rows, widths[-1]), 0.02)
        self.positions = None if grid is None else nn.Parameter(table)
        self.channels = widths[0]
        self.dropout = Dropout(dropout)

    def forward(
        self,
        images: Float[Tensor, "batch channels height width"],
        valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> tuple[Hidden, Context]:
        """Embed the images, and build their context (without padding)."""
        check_images(images, self.channels, valid)
        check_halves((images.shape[-2], images.shape[-1]), len(self.convolutions))
        z = self.feature_map(images)
        x = z.flatten(2).transpose(1, 2)
        if self.positions is not None and self.grid is not None:
            x = x + interpolated(self.positions, self.grid, (z.shape[-2], z.shape[-1]))
        x, ctx = as_sequence(x, self.position, self.dropout)
        return x, replace(ctx, grid=(z.shape[-2], z.shape[-1]))

    def feature_map(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch d_model rows columns"]:
        """The output of the convolutions."""
        # Channels last: the kernels of CPUs and GPUs are up to three times as fast in bfloat16.
        z = images.to(self.dtype).contiguous(memory_format=torch.channels_last)
        for layer in self.convolutions:
            # The maximum first: it goes with ReLU in any order, which then has a quarter to do.
            z = F.max_pool2d(layer(z), kernel_size=3, stride=2, padding=1).relu()
        return z.to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.convolutions.parameters()).dtype


def check_halves(size: tuple[int, int], n_layers: int) -> None:
    """Raise `InputError`, naming the nearest valid size, if an image cannot be halved so often."""
    least = 2**n_layers
    if min(size) < least:
        height, width = size
        raise InputError(
            f"an image of {height} × {width} is too small for {n_layers} convolutions, each of "
            f"which halves it: the nearest size that does is "
            f"{max(height, least)} × {max(width, least)}"
        )


def halved(size: tuple[int, int], n_layers: int) -> tuple[int, int]:
    """The rows and columns of an image after this many layers, rounded up each time."""
    for _ in range(n_layers):
        size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
    return size


@config
class ConvolutionalEmbeddingConfig:
    """Images embedded by convolutions that halve them, each with ReLU and max-pooling.

    Hassani et al. 2021, §3.2. `positions` are learned for images of `size` (height, width).
    """

    kind: Literal["convolutions"] = "convolutions"
    size: tuple[PositiveInt, PositiveInt] = (32, 32)
    """Height and width, in pixels, of the images that learned positions are for."""
    channels: PositiveInt = 3
    """Values of a pixel: 3 for colours, 1 for grey."""
    widths: tuple[PositiveInt, ...] = (64,)
    """The channels after each layer but the last, which has d_model; with none there is one
    layer.
    """
    kernel: PositiveInt = 3
    """The side of a kernel in pixels, an odd number."""
    positions: Literal["learned", "none"] = "learned"
    """Whether tokens have learned positions, besides those of `model.position`."""

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(
                f"kernel = {self.kernel} has no middle: an odd one keeps the size, such as "
                f"{self.kernel - 1} or {self.kernel + 1}"
            )
        check_halves(self.size, self.n_layers)

    @property
    def n_layers(self) -> int:
        """The number of convolutions."""
        return len(self.widths) + 1

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that an image of this height and width takes."""
        rows, columns = halved((size[0], size[1]), self.n_layers)
        return rows * columns

    def build(self, d_model: int, position: Position, dropout: float) -> ConvolutionalEmbedding:
        return ConvolutionalEmbedding(
            (self.channels, *self.widths, d_model),
            kernel=self.kernel,
            grid=halved(self.size, self.n_layers) if self.positions == "learned" else None,
            position=position,
            dropout=dropout,
        )
