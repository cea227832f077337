"""The pictures of a study: differences with their intervals, and learning curves."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from addnorm.errors import InputError
from addnorm.inspect.curves import COLORS, Curves, smoothed
from addnorm.inspect.pictures import FAINT, INK, Axes, Lettering, blank_figure, finished
from addnorm.lab.studies.study import Study
from addnorm.lab.studies.summary import Row, Summary

GOOD, BAD = "#3a7d44", "#c8553d"


def forest_picture(summary: Summary, folder: Path) -> str:
    """Draw the difference of each variant to the first, with its 95 % interval.

    Writes `differences.svg` and `.png`. Returns the name of the first, or an empty text if no
    variant has a difference.
    """
    rows = [row for row in summary.rows if row.difference is not None][::-1]
    if not rows:
        return ""
    title = f"{summary.metric}: difference to {summary.rows[0].name}"
    lettering = Lettering.of([title, *(row.name for row in rows)])
    figure = blank_figure(7.2, 1.3 + 0.42 * len(rows))
    ax = figure.subplots()
    ax.axvline(0, color=FAINT, lw=0.8)
    for y, row in enumerate(rows):
        _draw_row(ax, y, row, summary)
    ax.set_yticks(range(len(rows)), [lettering.line(row.name) for row in rows])
    for label in ax.get_yticklabels():
        label.set_fontproperties(lettering.font(9))
        label.set_parse_math(False)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    side = "left" if summary.lower_is_better else "right"
    ax.set_xlabel(f"mean over seeds, 95 % interval; {side} of the line is better", fontsize=8)
    ax.tick_params(colors=INK, labelsize=8, length=2)
    ax.spines[["top", "right", "left"]].set_visible(False)
    for name in ("differences.png", "differences.svg"):
        finished(figure, title, lettering, folder / name)
    return "differences.svg"


def _draw_row(ax: Axes, y: int, row: Row, summary: Summary) -> None:
    assert row.difference is not None
    interval = row.difference.interval
    better = summary.better(row)
    color = FAINT if better is None else GOOD if better else BAD
    if math.isfinite(interval.low):
        ax.plot([interval.low, interval.high], [y, y], color=color, lw=2.2, solid_capstyle="round")
    ax.plot([interval.mean], [y], "o", color=color, ms=6)


def curves_picture(study: Study, folder: Path) -> str:
    """Draw the learning curve of each variant: the mean over seeds, and the band between them.

    It is the validation loss if there is one, else the smoothed training loss. Writes `curves.svg`
    and `.png`. Returns the name of the first, or an empty text if no cell has steps.
    """
    lines = _lines(study)
    if not lines:
        return ""
    title = "validation loss" if all(line[3] for line in lines) else "training loss"
    lettering = Lettering.of([title, *(name for name, *_ in lines)])
    figure = blank_figure(7.2, 4.4)
    ax = figure.subplots()
    for (name, steps, values, _), color in zip(lines, COLORS * len(lines), strict=False):
        label = lettering.line(name)
        ax.plot(steps, values.mean(0), color=color, lw=1.5, label=label)
        if len(values) > 1:
            ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
    ax.set_xlabel("step", color=INK, fontsize=9)
    ax.set_ylabel(title, color=INK, fontsize=9)
    ax.tick_params(colors=FAINT, labelsize=8, length=2)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e4e9ee", lw=0.6)
    legend = ax.legend(frameon=False, fontsize=8, prop=lettering.font(8))
    for text in legend.get_texts():
        text.set_parse_math(False)
    for name in ("curves.png", "curves.svg"):
        finished(figure, "", lettering, folder / name)
    return "curves.svg"


Line = tuple[str, Sequence[float], NDArray[np.float64], bool]
"""A variant's name, the steps, a row of losses for each seed, and whether they are validation's."""


def _lines(study: Study) -> list[Line]:
    by_variant: dict[int, list[Curves]] = {}
    for cell in study.cells:
        try:
            curves = Curves.of(cell.folder)
        except InputError:  # it has no steps, or its journal is lost
            continue
        by_variant.setdefault(cell.variant, []).append(curves)
    valid = all(len(seed.valid[0]) > 1 for seeds in by_variant.values() for seed in seeds)
    lines: list[Line] = []
    for index, seeds in by_variant.items():
        points = [seed.valid if valid else seed.steps["loss"] for seed in seeds]
        shortest = min(points, key=lambda point: len(point[0]))[0]
        n = len(shortest)
        width = 1 if valid else max(1, n // 50)
        values = np.array([smoothed(losses, width)[:n] for _, losses in points])
        lines.append((study.variants[index].name, shortest, values, valid))
    return lines
