"""A picture of which classes a classifier takes for which."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from addnorm.inspect.pictures import FAINT, INK, SHARE, Lettering, blank_figure, finished, style

NUMBERED = 20
"""The most classes for which each cell has its number written in it."""


def confusion_picture(
    pairs: Sequence[tuple[str, str]], labels: Sequence[str], file: Path, title: str = ""
) -> None:
    """Draw a row for each class, a column for what it was taken for, shaded by its share.

    `pairs` are the right class of each example and the one that it was taken for.
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
