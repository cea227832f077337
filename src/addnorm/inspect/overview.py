"""The picture of an inspection: attention maps above plots by distance and by layer."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from addnorm.errors import InputError
from addnorm.inspect.curves import COLORS
from addnorm.inspect.depth import ByLayer
from addnorm.inspect.distance import ByOffset
from addnorm.inspect.look import AttentionMap, Look
from addnorm.inspect.maps import Box, boxes_of, omitted
from addnorm.inspect.pictures import (
    FAINT,
    INK,
    SHARE,
    Axes,
    Figure,
    Lettering,
    SubFigure,
    blank_figure,
    finished,
    log_scale,
    shares_scale,
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

Plot = Callable[[Axes], None]


def overview(seen: Look, path: Path | None = None) -> Figure:
    """Draw all results of an inspection in one picture; `path` ends in .png, .pdf or .svg.

    Raises `InputError` where there is nothing to draw.
    """
    kinds = [[*some] for _, some in groupby(_sorted(seen), lambda one: (one.stack, one.cross))]
    plots = [row for row in (_plots(seen, stack) for stack in seen.prepared.pieces) if row]
    if not kinds and not plots:
        raise InputError("; ".join([f"{seen.run}: nothing to draw", *seen.notes]))
    title = f"{seen.run}: {_quoted(seen.text)}"
    if seen.prepared.translation is not None:
        title += f" → {_quoted(seen.prepared.translation)}"
    notes = [*seen.notes, *dict.fromkeys(filter(None, map(omitted, kinds)))]
    pieces = [piece for one in seen.attention for piece in (*one.rows, *one.columns)]
    lettering = Lettering.of([title, *pieces, *notes])
    boxes = [boxes_of(maps, lettering, 1 / len(kinds)) for maps in kinds]
    # Those of one kind stand beside one another; of several kinds, each is a column.
    columns = [[box] for box in boxes[0]] if len(boxes) == 1 else boxes
    top = max((sum(box.height for box in column) for column in columns), default=0.0)
    widths = [max(box.width for box in column) for column in columns]
    across = max(map(len, plots), default=0)
    width = max(sum(widths) + 1.2, 3.4 * across, 5.0)
    figure = blank_figure(width, top + ROW * len(plots) + 0.5 + 0.15 * len(notes))
    ratios = [height for height in (top, ROW * len(plots)) if height]
    parts = figure.subfigures(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    if kinds:
        _draw_maps(parts[0], columns, [*widths, width - sum(widths)])
    if plots:
        _draw_plots(parts[-1], plots, across)
    lines = [line for note in notes for line in wrap(note, int(16 * width))]
    return finished(figure, title, lettering, path, lines)


def _sorted(seen: Look) -> list[AttentionMap]:
    return sorted(seen.attention, key=lambda one: (one.stack != "encoder", one.cross, one.layer))


def _quoted(text: str, most: int = 70) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= most else text[: most - 1] + '…'}”"


def _draw_maps(part: SubFigure, columns: Sequence[Sequence[Box]], widths: Sequence[float]) -> None:
    """Attention maps in columns, with their shared colour scale on the right."""
    places = part.subfigures(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for place, column in zip(places, columns, strict=False):
        heights = [box.height for box in column]
        inner = place.subfigures(len(column), 1, squeeze=False, height_ratios=heights)[:, 0]
        for one, box in zip(inner, column, strict=True):
            box.draw(one)
    shares_scale(places[-1])


def _draw_plots(part: SubFigure, rows: Sequence[Sequence[Plot]], across: int) -> None:
    grid = part.subplots(len(rows), across, squeeze=False)
    for axes, plots in zip(grid, rows, strict=True):
        for i, ax in enumerate(axes):
            if i >= len(plots):
                ax.set_visible(False)
                continue
            plots[i](ax)
            ax.tick_params(which="both", colors=FAINT, labelsize=7, length=2)
            ax.spines[:].set_visible(False)
            ax.grid(color="#e4e9ee", lw=0.6)


def _plots(seen: Look, stack: str) -> list[Plot]:
    """The plots of a stack below its attention maps, from left to right."""
    where = "" if stack == "stack" else f"{stack}: "
    found: list[Plot] = [
        partial(_by_offset, one=one, title=f"{where}{one.what}", log=one in seen.by_distance)
        for one in (*seen.positions, *seen.by_distance)
        if one.stack == stack
    ]
    titles = {
        "size by layer, root mean square": seen.depth,
        f"gradient by layer, norm\nof the {seen.gradient_of}": seen.gradients,
    }
    found += [
        partial(_by_layer, figures=figures[stack], title=f"{where}{title}", mixer=seen.mixer)
        for title, figures in titles.items()
        if stack in figures
    ]
    return found


def _by_offset(ax: Axes, one: ByOffset, title: str, *, log: bool) -> None:
    """A line for each head or layer, the first light and the last dark."""
    back = max(one.offsets) == 0
    places = [-offset for offset in one.offsets] if back else one.offsets
    n = len(one.lines)
    labelled = {0, n // 3, 2 * n // 3, n - 1} if n > 4 else {*range(n)}
    for i, (name, values) in enumerate(one.lines.items()):
        color = SHARE(0.35 + 0.6 * i / max(1, n - 1)) if n > 1 else COLORS[0]
        label = name if i in labelled and n > 1 else None
        shown = [value if value > 0 or not log else float("nan") for value in values]
        ax.plot(places, shown, color=color, lw=1.2, label=label)
    _named(ax, title, "tokens back" if back else "tokens ahead (left: back)")
    if log:
        log_scale(ax)
    ax.locator_params(axis="x", integer=True)
    if n > 1:
        _legend(ax)


def _by_layer(ax: Axes, figures: ByLayer, title: str, mixer: str) -> None:
    """The stream between the layers, sublayers at them; the scale is logarithmic."""
    for name, values in figures.items():
        label, color = LINES[name]
        places = [i - 0.5 * (name == "stream") for i in range(len(values))]
        shown = [value if value > 0 else float("nan") for value in values]
        label = mixer if name == "attention" else label
        ax.plot(places, shown, color=color, lw=1.2, marker="o", ms=3, label=label)
    log_scale(ax)
    ax.set_xlim(-0.7, max(map(len, figures.values())) - 1.3)
    ax.locator_params(axis="x", nbins=8, integer=True)
    _named(ax, title, "layer")
    _legend(ax)


def _legend(ax: Axes) -> None:
    """Between the title and the curves, where it hides none of them."""
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


def _named(ax: Axes, title: str, across: str) -> None:
    ax.set_title(title, fontsize=9, color=INK, loc="left", pad=18)
    ax.set_xlabel(across, fontsize=8, color=INK)
