"""Layout of attention maps: a few large ones, or many small ones beside a large mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.inspect.look import AttentionMap
from addnorm.inspect.pictures import (
    FAINT,
    INK,
    SHARE,
    SHARES,
    Lettering,
    Panel,
    SubFigure,
    heat_map,
    room_for,
    style,
)

FEW = 6
"""Up to this many heads are drawn large with token labels; otherwise only their mean is."""

MOST = 16
"""The most small maps in a row or column; if there are more, evenly spaced ones are chosen."""

WIDTH = 16.5
"""The target width of maps in inches, which a long text may exceed."""

CELL = (0.11, 0.34)
"""The least and the most inches of a cell in a large map."""


@dataclass(frozen=True)
class Box:
    """A part of a picture, of so many inches."""

    width: float
    height: float
    draw: Callable[[SubFigure], None]


def boxes_of(maps: Sequence[AttentionMap], lettering: Lettering, share: float) -> list[Box]:
    """The boxes of one kind of attention, which may take a share of the width.

    All maps, each with its pieces, or else small ones in a table of layers and heads, and the mean.
    """
    first = maps[0]
    title = {"stack": "self-attention", "encoder": "encoder: self-attention"}.get(
        first.stack, "decoder: self-attention"
    )
    if first.cross:
        title = "cross-attention of each produced piece"
    panel = partial(Panel, source=first.columns, target=first.rows)
    if sum(len(one.heads) for one in maps) <= FEW:
        panels = [
            panel(weights=weights, title=f"layer {one.layer}, head {head}")
            for one in maps
            for head, weights in zip(one.heads, one.weights, strict=True)
        ]
        return [_large(panels, title, lettering, share * WIDTH)]
    small = _small(maps, title, share * WIDTH)
    mean = torch.cat([one.weights for one in maps]).mean(0)
    room = WIDTH - small.width if share == 1 else share * WIDTH
    title = "the mean of these layers and heads"
    return [small, _large([panel(weights=mean)], title, lettering, room)]


def omitted(maps: Sequence[AttentionMap]) -> str:
    """A sentence on the layers and heads left out of a table of small maps, or an empty string."""
    layers, heads = len(maps), max(len(one.heads) for one in maps)
    if max(layers, heads) <= MOST:
        return ""
    shown = f"{min(layers, MOST)} of {layers} layers and {min(heads, MOST)} of {heads} heads"
    return f"{shown} are drawn small: `layers` and `heads` choose others."


def _large(panels: Sequence[Panel], title: str, lettering: Lettering, room: float) -> Box:
    n_rows, n_columns = panels[0].weights.shape
    beside = room_for(lettering, panels[0].target)
    above = room_for(lettering, panels[0].source) + 0.3
    across = next(
        n for n in range(len(panels), 0, -1) if n == 1 or n * (n_columns * 0.2 + beside) <= room
    )
    cell = min(CELL[1], max(CELL[0], (room / across - beside) / n_columns))
    down = -(-len(panels) // across)

    def draw(part: SubFigure) -> None:
        part.suptitle(title, **style(lettering.font(10), INK, x=0.01, ha="left"))
        grid = part.subplots(down, across, squeeze=False)
        for i, ax in enumerate(grid.flat):
            ax.set_anchor("NW")
            if i < len(panels):
                heat_map(ax, panels[i], lettering, SHARES, size=min(9.0, cell * 44))
            else:
                ax.set_visible(False)

    return Box(across * (n_columns * cell + beside), 0.4 + down * (n_rows * cell + above), draw)


def _small(maps: Sequence[AttentionMap], title: str, room: float) -> Box:
    """A table of small maps in one image: a row for each layer, a column for each head."""
    kept = [maps[i] for i in evenly(len(maps))]
    heads = evenly(max(len(one.heads) for one in maps))
    tile = min(0.7, room / len(heads), 9.0 / len(kept))
    n_rows, n_columns = len(maps[0].rows), len(maps[0].columns)
    image = tiled(kept, heads)

    def draw(part: SubFigure) -> None:
        part.suptitle(title, **style(Lettering.of([]).font(10), INK, x=0.01, ha="left"))
        ax = part.subplots()
        colors = SHARE.with_extremes(bad="white")
        ax.imshow(image.numpy(), cmap=colors, norm=SHARES, aspect="auto")
        labels = [str(maps[0].heads[i] if i < len(maps[0].heads) else i) for i in heads]
        ax.set_xticks(
            [(n_columns + _gap(n_columns)) * i + n_columns / 2 for i in range(len(heads))], labels
        )
        ax.set_yticks(
            [(n_rows + _gap(n_rows)) * i + n_rows / 2 for i in range(len(kept))],
            [str(one.layer) for one in kept],
        )
        ax.set_xlabel("head", color=INK, fontsize=8)
        ax.set_ylabel("layer", color=INK, fontsize=8)
        ax.tick_params(length=0, colors=FAINT, labelsize=7)
        ax.spines[:].set_visible(False)

    return Box(len(heads) * tile + 0.6, len(kept) * tile + 0.8, draw)


def tiled(maps: Sequence[AttentionMap], heads: Sequence[int]) -> Float[Tensor, "down across"]:
    """The maps of some heads in one matrix, with nothing (NaN) between them."""
    n_rows, n_columns = maps[0].weights.shape[1:]
    blank = torch.full((n_rows + _gap(n_rows), n_columns + _gap(n_columns)), torch.nan)
    rows: list[Tensor] = []
    for one in maps:
        row = [blank.clone() for _ in heads]
        for tile, head in zip(row, heads, strict=True):
            if head < len(one.heads):
                tile[:n_rows, :n_columns] = one.weights[head]
        rows.append(torch.cat(row, 1))
    return torch.cat(rows)[: -_gap(n_rows), : -_gap(n_columns)]


def _gap(n: int) -> int:
    """Cells between small maps of `n` cells."""
    return max(1, round(n / 12))


def evenly(n: int) -> list[int]:
    """Up to a maximum of evenly spaced indices below `n`, the first and the last among them."""
    return [*range(n)] if n <= MOST else [round(i * (n - 1) / (MOST - 1)) for i in range(MOST)]
