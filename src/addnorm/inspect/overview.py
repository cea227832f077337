"""The picture of an inspection: attention maps above plots by distance and by layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from textwrap import wrap

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.errors import InputError
from addnorm.inspect.curves import COLORS
from addnorm.inspect.depth import ByLayer
from addnorm.inspect.distance import ByOffset
from addnorm.inspect.look import AttentionMap, Look
from addnorm.inspect.pictures import (
    FAINT,
    INK,
    SHARE,
    SHARES,
    Axes,
    Figure,
    Lettering,
    Panel,
    SubFigure,
    blank_figure,
    finished,
    heat_map,
    log_scale,
    plain_axes,
    room_for,
    shares_scale,
    style,
)

ROW = 2.6
"""Inches of a row of figures."""

LINES = {
    "stream": ("residual stream", INK),
    "attention": ("self-attention", COLORS[0]),
    "cross_attention": ("cross-attention", COLORS[2]),
    "feedforward": ("feed-forward", COLORS[1]),
}
"""The label and the colour of each quantity plotted by layer."""

FEW = 6
"""Up to this many heads are drawn large with token labels; otherwise only their mean is."""

MOST = 16
"""The most small maps in a row or column; if there are more, evenly spaced ones are chosen."""

WIDTH = 16.5
"""The target width of maps in inches, which a long text may exceed."""

CELL = (0.11, 0.34)
"""The least and the most inches of a cell in a large map."""

Plot = Callable[[Axes], None]


@dataclass(frozen=True)
class Box:
    """A part of a picture, with its size in inches."""

    width: float
    height: float
    draw: Callable[[SubFigure], None]


def overview(seen: Look, path: Path | None = None) -> Figure:
    """Draw all results of an inspection in one picture; `path` ends in .png, .pdf or .svg.

    Raises `InputError` where there is nothing to draw.
    """
    sorted_maps = sorted(seen.attention, key=lambda m: (m.stack != "encoder", m.cross, m.layer))
    kinds = [[*maps] for _, maps in groupby(sorted_maps, lambda m: (m.stack, m.cross))]
    plots = [row for row in (_plots(seen, stack) for stack in seen.prepared.pieces) if row]
    if not kinds and not plots:
        raise InputError("; ".join([f"{seen.run}: nothing to draw", *seen.notes]))
    title = f"{seen.run}: {_quoted(seen.text)}"
    if seen.prepared.translation is not None:
        title += f" → {_quoted(seen.prepared.translation)}"
    notes = [*seen.notes, *dict.fromkeys(filter(None, map(omitted, kinds)))]
    pieces = [piece for shown in seen.attention for piece in (*shown.rows, *shown.columns)]
    lettering = Lettering.of([title, *pieces, *notes])
    boxes = [boxes_of(maps, lettering, 1 / len(kinds)) for maps in kinds]
    # The boxes of a single kind are columns; of several kinds, each kind is a column.
    columns = [[box] for box in boxes[0]] if len(boxes) == 1 else boxes
    top = max((sum(box.height for box in column) for column in columns), default=0.0)
    widths = [max(box.width for box in column) for column in columns]
    n_columns = max(map(len, plots), default=0)
    width = max(sum(widths) + 1.2, 3.4 * n_columns, 5.0)
    figure = blank_figure(width, top + ROW * len(plots) + 0.5 + 0.15 * len(notes))
    ratios = [height for height in (top, ROW * len(plots)) if height]
    parts = figure.subfigures(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    if kinds:
        _draw_maps(parts[0], columns, [*widths, width - sum(widths)])
    if plots:
        _draw_plots(parts[-1], plots, n_columns)
    lines = [line for note in notes for line in wrap(note, int(16 * width))]
    return finished(figure, title, lettering, path, lines)


def _quoted(text: str, most: int = 70) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= most else text[: most - 1] + '…'}”"


def _draw_maps(part: SubFigure, columns: Sequence[Sequence[Box]], widths: Sequence[float]) -> None:
    """Draw attention maps in columns, with their shared colour scale on the right."""
    subfigures = part.subfigures(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for subfigure, column in zip(subfigures, columns, strict=False):
        heights = [box.height for box in column]
        cells = subfigure.subfigures(len(column), 1, squeeze=False, height_ratios=heights)[:, 0]
        for cell, box in zip(cells, column, strict=True):
            box.draw(cell)
    shares_scale(subfigures[-1])


def _draw_plots(part: SubFigure, rows: Sequence[Sequence[Plot]], n_columns: int) -> None:
    grid = part.subplots(len(rows), n_columns, squeeze=False)
    for axes, plots in zip(grid, rows, strict=True):
        for i, ax in enumerate(axes):
            if i >= len(plots):
                ax.set_visible(False)
                continue
            plots[i](ax)
            plain_axes(ax, 7)


def _plots(seen: Look, stack: str) -> list[Plot]:
    """The plots of a stack below its attention maps, from left to right."""
    where = "" if stack == "stack" else f"{stack}: "
    plots: list[Plot] = [
        partial(_by_offset, curves=curves, title=f"{where}{curves.what}", log=log)
        for log, group in ((False, seen.positions), (True, seen.by_distance))
        for curves in group
        if curves.stack == stack
    ]
    titles = {
        "size by layer, root mean square": seen.depth,
        f"gradient by layer, norm\nof the {seen.gradient_of}": seen.gradients,
    }
    plots += [
        partial(_by_layer, figures=figures[stack], title=f"{where}{title}", mixer=seen.mixer)
        for title, figures in titles.items()
        if stack in figures
    ]
    return plots


def _by_offset(ax: Axes, curves: ByOffset, title: str, *, log: bool) -> None:
    """Draw a line for each head or layer, the first light and the last dark."""
    back = max(curves.offsets) == 0
    places = [-offset for offset in curves.offsets] if back else curves.offsets
    n = len(curves.lines)
    labelled = {0, n // 3, 2 * n // 3, n - 1} if n > 4 else {*range(n)}
    for i, (name, values) in enumerate(curves.lines.items()):
        color = SHARE(0.35 + 0.6 * i / max(1, n - 1)) if n > 1 else COLORS[0]
        label = name if i in labelled and n > 1 else None
        shown = [value if value > 0 or not log else float("nan") for value in values]
        ax.plot(places, shown, color=color, lw=1.2, label=label)
    _label(ax, title, "tokens back" if back else "tokens ahead (left: back)")
    if log:
        log_scale(ax)
    ax.locator_params(axis="x", integer=True)
    if n > 1:
        _legend(ax)


def _by_layer(ax: Axes, figures: ByLayer, title: str, mixer: str) -> None:
    """Draw the stream between layers, and the sublayers at them, on a logarithmic scale."""
    for name, values in figures.items():
        label, color = LINES[name]
        places = [i - 0.5 * (name == "stream") for i in range(len(values))]
        shown = [value if value > 0 else float("nan") for value in values]
        label = mixer if name == "attention" else label
        ax.plot(places, shown, color=color, lw=1.2, marker="o", ms=3, label=label)
    log_scale(ax)
    ax.set_xlim(-0.7, max(map(len, figures.values())) - 1.3)
    ax.locator_params(axis="x", nbins=8, integer=True)
    _label(ax, title, "layer")
    _legend(ax)


def _legend(ax: Axes) -> None:
    """Put the legend between title and curves, where it hides no curve."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=4,
        frameon=False,
        fontsize=6.5,
        labelcolor=INK,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0,
    )


def _label(ax: Axes, title: str, across: str) -> None:
    ax.set_title(title, fontsize=9, color=INK, loc="left", pad=18)
    ax.set_xlabel(across, fontsize=8, color=INK)


# Attention maps: a few large ones, or many small ones next to a large mean.


def boxes_of(maps: Sequence[AttentionMap], lettering: Lettering, share: float) -> list[Box]:
    """The boxes for one kind of attention, within this share of the width.

    Up to `FEW` maps are drawn large, each with its pieces; more are small, in a table of layers and
    heads, followed by their mean.
    """
    first = maps[0]
    title = {"stack": "self-attention", "encoder": "encoder: self-attention"}.get(
        first.stack, "decoder: self-attention"
    )
    if first.cross:
        title = "cross-attention of each produced piece"
    panel = partial(Panel, source=first.columns, target=first.rows)
    if sum(len(shown.heads) for shown in maps) <= FEW:
        panels = [
            panel(weights=weights, title=f"layer {shown.layer}, head {head}")
            for shown in maps
            for head, weights in zip(shown.heads, shown.weights, strict=True)
        ]
        return [_large(panels, title, lettering, share * WIDTH)]
    small = _small(maps, title, share * WIDTH)
    mean = torch.cat([shown.weights for shown in maps]).mean(0)
    room = WIDTH - small.width if share == 1 else share * WIDTH
    title = "the mean of these layers and heads"
    return [small, _large([panel(weights=mean)], title, lettering, room)]


def omitted(maps: Sequence[AttentionMap]) -> str:
    """A sentence on the layers and heads left out of a table of small maps, or an empty string."""
    layers, heads = len(maps), max(len(shown.heads) for shown in maps)
    if max(layers, heads) <= MOST:
        return ""
    shown = f"{min(layers, MOST)} of {layers} layers and {min(heads, MOST)} of {heads} heads"
    return f"{shown} are drawn small: `layers` and `heads` choose others."


def _large(panels: Sequence[Panel], title: str, lettering: Lettering, room: float) -> Box:
    n_rows, n_columns = panels[0].weights.shape
    left = room_for(lettering, panels[0].target)
    above = room_for(lettering, panels[0].source) + 0.3
    across = next(
        n for n in range(len(panels), 0, -1) if n == 1 or n * (n_columns * 0.2 + left) <= room
    )
    cell = min(CELL[1], max(CELL[0], (room / across - left) / n_columns))
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

    return Box(across * (n_columns * cell + left), 0.4 + down * (n_rows * cell + above), draw)


def _small(maps: Sequence[AttentionMap], title: str, room: float) -> Box:
    """A table of small maps as one image: a row for each layer, a column for each head."""
    layers = [maps[i] for i in evenly(len(maps))]
    heads = evenly(max(len(shown.heads) for shown in maps))
    tile = min(0.7, room / len(heads), 9.0 / len(layers))
    n_rows, n_columns = len(maps[0].rows), len(maps[0].columns)
    image = tiled(layers, heads)

    def centres(cells: int, tiles: int) -> list[float]:
        return [(cells + _gap(cells)) * i + cells / 2 for i in range(tiles)]

    def draw(part: SubFigure) -> None:
        part.suptitle(title, **style(Lettering.of([]).font(10), INK, x=0.01, ha="left"))
        ax = part.subplots()
        colors = SHARE.with_extremes(bad="white")
        ax.imshow(image.numpy(), cmap=colors, norm=SHARES, aspect="auto")
        labels = [str(maps[0].heads[i] if i < len(maps[0].heads) else i) for i in heads]
        ax.set_xticks(centres(n_columns, len(heads)), labels)
        ax.set_yticks(centres(n_rows, len(layers)), [str(shown.layer) for shown in layers])
        ax.set_xlabel("head", color=INK, fontsize=8)
        ax.set_ylabel("layer", color=INK, fontsize=8)
        ax.tick_params(length=0, colors=FAINT, labelsize=7)
        ax.spines[:].set_visible(False)

    return Box(len(heads) * tile + 0.6, len(layers) * tile + 0.8, draw)


def tiled(maps: Sequence[AttentionMap], heads: Sequence[int]) -> Float[Tensor, "down across"]:
    """The maps of these heads in one matrix, separated by NaN."""
    n_rows, n_columns = maps[0].weights.shape[1:]
    blank = torch.full((n_rows + _gap(n_rows), n_columns + _gap(n_columns)), torch.nan)
    rows: list[Tensor] = []
    for shown in maps:
        row = [blank.clone() for _ in heads]
        for tile, head in zip(row, heads, strict=True):
            if head < len(shown.heads):
                tile[:n_rows, :n_columns] = shown.weights[head]
        rows.append(torch.cat(row, 1))
    return torch.cat(rows)[: -_gap(n_rows), : -_gap(n_columns)]


def _gap(n: int) -> int:
    """The number of cells between small maps of `n` cells."""
    return max(1, round(n / 12))


def evenly(n: int) -> list[int]:
    """Up to `MOST` evenly spaced indices below `n`, including the first and the last."""
    return [*range(n)] if n <= MOST else [round(i * (n - 1) / (MOST - 1)) for i in range(MOST)]
