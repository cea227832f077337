"""A picture of what compression costs: size against loss and speed, a point for each scheme."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from addnorm.atomic import atomic_file
from addnorm.errors import InputError
from addnorm.inspect.pictures import FAINT, INK

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise InputError("Pictures need matplotlib: pip install 'addnorm[plots]'.") from error


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
    """Draw size against the loss, and against the speed for each number of texts, as far as known.

    The first of `models` is what the others are compared with.
    """
    first = next(iter(models.values()))
    panels = ["loss"] * ("loss" in first.scores) + [f"tokens/s, {n} at once" for n in first.speeds]
    with rc_context({"font.size": 9, "text.color": INK, "axes.edgecolor": FAINT}):
        figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for place, panel in zip(axes, panels, strict=True):
            values = {
                name: one.scores["loss"] if panel == "loss" else one.speeds[_texts(panel)]
                for name, one in models.items()
            }
            _points(place, models, values, panel)
        with atomic_file(file) as partial:
            figure.savefig(partial, format=file.suffix[1:], dpi=150)


def _texts(panel: str) -> int:
    return int(panel.removeprefix("tokens/s, ").split()[0])


def _points(
    axes: Axes, models: Mapping[str, Compressed], values: Mapping[str, float], label: str
) -> None:
    whole = next(iter(models.values())).n_bytes
    for i, (name, one) in enumerate(models.items()):
        x, y = one.n_bytes / whole, values[name]
        axes.plot(x, y, "o", color=f"C{i % 10}", label=f"{name}: {y:,.4g}")
    axes.axhline(next(iter(values.values())), color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_xlabel("size, of float32")
    axes.set_ylabel(label)
    axes.set_xlim(0, 1.08)
    axes.legend(fontsize=7, frameon=False)
