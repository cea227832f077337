"""A picture of compressed models: size, loss and speed, with a row for each scheme."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from addnorm.inspect.pictures import (
    FAINT,
    INK,
    Axes,
    Lettering,
    blank_figure,
    finished,
    style,
)


@runtime_checkable
class Compressed(Protocol):
    """A model's size, scores and speed."""

    @property
    def n_bytes(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, float]: ...
    @property
    def speeds(self) -> Mapping[int, float]: ...


def compression_picture(models: Mapping[str, Compressed], file: Path) -> None:
    """Draw a row for each model: its size, loss and speeds, where known.

    The others are compared with the first of `models`, a dotted line in every panel. `file` ends in
    .png, .pdf or .svg.
    """
    panels, names = _panels(models), list(models)
    lettering = Lettering.of(names)
    figure = blank_figure(2.2 + 2.6 * len(panels), 1.2 + 0.28 * len(names))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        _rows(ax, title, values)
    labels = [lettering.line(name) for name in names]
    axes[0].set_yticks(range(len(names)), labels, **style(lettering.font(9), INK))
    axes[0].invert_yaxis()
    finished(figure, "", lettering, file)


def _panels(models: Mapping[str, Compressed]) -> dict[str, list[float]]:
    """The figures of all models, by panel title."""
    first, *_ = every = list(models.values())
    panels = {"size, of the first": [model.n_bytes / first.n_bytes for model in every]}
    if "loss" in first.scores:
        panels["loss, nats"] = [model.scores["loss"] for model in every]
    for n in first.speeds:
        panels[f"tokens/s, {n} at once"] = [model.speeds[n] for model in every]
    return panels


def _rows(axes: Axes, title: str, values: Sequence[float]) -> None:
    """Draw a dot for each value, with its number to the right."""
    axes.axvline(values[0], color=FAINT, linewidth=0.8, linestyle=":")
    axes.plot(values, range(len(values)), "o", color="#2b7ba6", markersize=5)
    for row, value in enumerate(values):
        axes.annotate(
            f"{value:,.4g}" if value < 1000 else f"{value:,.0f}",
            (value, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=INK,
        )
    axes.set_title(title, fontsize=9, color=INK)
    axes.margins(x=0.25, y=0.06)
    axes.tick_params(length=2, labelsize=9)
    axes.spines[:].set_color(FAINT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
