"""A picture of what compression costs: size, loss and speed, a row for each scheme."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from addnorm.atomic import atomic_file
from addnorm.inspect.pictures import FAINT, INK, Axes, Figure, rc_context


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
    """Draw a row for each model: its size, its loss and its speeds, as far as they are known.

    The first of `models` is what the others are compared with: a dotted line in every panel.
    """
    panels = _panels(models)
    names = list(models)
    with rc_context({"font.size": 9, "text.color": INK, "axes.edgecolor": FAINT}):
        figure = Figure(
            figsize=(2.2 + 2.6 * len(panels), 1.2 + 0.28 * len(names)), layout="constrained"
        )
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for place, (title, values) in zip(axes, panels.items(), strict=True):
            _rows(place, title, values)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].invert_yaxis()
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as partial:
            figure.savefig(partial, format=file.suffix[1:], dpi=150)


def _panels(models: Mapping[str, Compressed]) -> dict[str, list[float]]:
    """The figures of all models by what they are."""
    first, *_ = all_of_them = list(models.values())
    panels = {"size, of the first": [one.n_bytes / first.n_bytes for one in all_of_them]}
    if "loss" in first.scores:
        panels["loss, nats"] = [one.scores["loss"] for one in all_of_them]
    for n in first.speeds:
        panels[f"tokens/s, {n} at once"] = [one.speeds[n] for one in all_of_them]
    return panels


def _rows(axes: Axes, title: str, values: Sequence[float]) -> None:
    """A dot for each value, with the number beside it."""
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
        )
    axes.set_title(title, fontsize=9)
    axes.margins(x=0.25, y=0.06)
    axes.tick_params(length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
