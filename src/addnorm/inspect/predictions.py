"""Pictures of predictions: a confusion matrix, and a forecast with the true values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from addnorm.inspect.pictures import (
    FAINT,
    INK,
    SHARE,
    Figure,
    Lettering,
    blank_figure,
    finished,
    plain_axes,
    style,
)
from addnorm.runs.inference.results import Forecast

NUMBERED = 20
"""The most classes for which each cell shows its number."""


def confusion_picture(
    pairs: Sequence[tuple[str, str]], labels: Sequence[str], file: Path, title: str = ""
) -> None:
    """Draw a confusion matrix: a row for each class, a column for each predicted class.

    `pairs` are the true and the predicted class of each example. Cells are shaded by the share of
    the row.
    """
    place = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), np.int64)
    for gold, predicted in pairs:
        counts[place[gold], place[predicted]] += 1
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.6 + 0.42 * min(len(labels), 40)
    figure = blank_figure(side + 0.6, side)
    ax = figure.subplots()
    ax.imshow(shares, cmap=SHARE, vmin=0, vmax=1, interpolation="nearest")
    lettering = Lettering.of([title, *labels])
    names = [lettering.line(label) for label in labels]
    turned = 90 if max(map(len, names)) > 2 else 0
    ax.set_xticks(range(len(names)), names, **style(lettering.font(8), INK, rotation=turned))
    ax.set_yticks(range(len(names)), names, **style(lettering.font(8), INK))
    ax.set_xlabel("taken for", color=INK, fontsize=9)
    ax.set_ylabel("class", color=INK, fontsize=9)
    ax.tick_params(length=0)
    ax.spines[:].set_color(FAINT)
    if len(labels) <= NUMBERED:
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.5 else INK
            ax.text(
                column, row, str(counts[row, column]), ha="center", va="center", size=8, color=color
            )
    finished(figure, title, lettering, file)


PAST, FORECAST, TRUTH = "#7a8794", "#c8553d", "#0f6ba8"


def forecast_picture(forecast: Forecast, path: Path | None = None, title: str = "") -> Figure:
    """Draw the past, the forecast and the true values of each variable, one above the other.

    The past is as long as the model's input, but at most three times the horizon or a hundred
    steps, whichever is longer. `path` ends in .png, .pdf or .svg.
    """
    n = len(forecast.names)
    shown = min(len(forecast.past_times), max(100, 3 * len(forecast.times)))
    lettering = Lettering.of([title, *forecast.names])
    figure = blank_figure(8.0, 1.0 + 1.3 * n)
    from matplotlib.dates import DAILY, AutoDateLocator

    grid = figure.subplots(n, 1, sharex=True, squeeze=False)
    for i, (ax, name) in enumerate(zip(grid[:, 0], forecast.names, strict=True)):
        past = forecast.past[i, -shown:].tolist()
        times = [forecast.past_times[-1], *forecast.times]  # curves begin at the end of the past
        ax.plot(forecast.past_times[-shown:], past, color=PAST, lw=1, label="past")
        if forecast.truth is not None:
            truth = [past[-1], *forecast.truth[i].tolist()]
            ax.plot(times, truth, color=TRUTH, lw=1.2, label="truth")
        values = [past[-1], *forecast.values[i].tolist()]
        ax.plot(times, values, color=FORECAST, lw=1.4, label="forecast")
        ax.set_ylabel(lettering.line(name), **style(lettering.font(8), INK))
        plain_axes(ax, 8)
    above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    grid[0, 0].legend(frameon=False, fontsize=8, labelcolor=INK, ncols=3, **above)
    grid[-1, 0].xaxis.set_major_locator(AutoDateLocator(maxticks={DAILY: 6}))
    return finished(figure, title, lettering, path)
