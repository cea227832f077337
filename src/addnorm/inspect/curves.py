"""Plots of training curves: loss, learning rate and gradient norm of one or more runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from addnorm.errors import InputError
from addnorm.inspect.pictures import INK, Figure, Lettering, blank_figure, finished, plain_axes
from addnorm.training.loggers import read_journal

COLORS = ("#0f6ba8", "#c8553d", "#3a7d44", "#8b5fbf", "#b8860b", "#4a4e69", "#d1478b", "#0a9396")
"""The colours of the runs, in turn; distinguishable with red–green colour blindness."""

MEASURES = {"loss": "loss", "lr": "learning rate", "grad_norm": "gradient norm"}
"""The metrics logged at every step, with their axis labels."""

Points = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Curves:
    """The training curves of a run."""

    name: str
    steps: Mapping[str, Points]
    valid: Points

    @classmethod
    def of(cls, folder: Path, name: str | None = None) -> "Curves":
        """Read the curves of a run folder; `name` defaults to the folder's name.

        Raises `InputError` if it has no training steps.
        """
        lines = read_journal(folder / "metrics.jsonl").lines
        steps = {name: _points(lines, name) for name in MEASURES}
        if not steps["loss"][0]:
            raise InputError(
                f"{folder}: no step in {folder / 'metrics.jsonl'}: nothing to draw: the folder in "
                "which the model was trained has them"
            )
        return cls(
            folder.resolve().name if name is None else name, steps, _points(lines, "valid_loss")
        )


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest end of each path that distinguishes it from the others."""
    paths = [folder.resolve().parts for folder in folders]

    def name(path: tuple[str, ...]) -> str:
        others = [other for other in paths if other != path]
        for n in range(1, len(path)):
            if not any(other[-n:] == path[-n:] for other in others):
                return "/".join(path[-n:])
        return "/".join(path)

    return [name(path) for path in paths]


def _points(lines: Sequence[Mapping[str, float]], name: str) -> Points:
    """The steps and values of a metric; for steps repeated after a resume, the latest value."""
    values = {line["step"]: line[name] for line in lines if name in line}
    return [*values], [*values.values()]


def smoothed(values: Sequence[float], n: int) -> list[float]:
    """A moving average over about `n` values: `m_t = m_(t-1) + (x_t - m_(t-1)) / min(t, n)`."""
    mean, means = 0.0, list[float]()
    for t, value in enumerate(values, start=1):
        mean += (value - mean) / min(t, n)
        means.append(mean)
    return means


def training_picture(runs: Sequence[Curves], path: Path | None = None, title: str = "") -> Figure:
    """Plot loss, learning rate and gradient norm against the step, one above the other.

    The raw training loss is drawn faintly, with a curve smoothed over a fiftieth of the steps on
    top; the validation loss has a dot for each validation. `path` ends in .png, .pdf or .svg.
    """
    names = [run.name for run in runs]
    lettering = Lettering.of([title, *names])
    figure = blank_figure(8.0, 7.2)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=[2.4, 1, 1])
    for run, color in zip(runs, (COLORS * len(runs))[: len(runs)], strict=True):
        for ax, name in zip(axes, MEASURES, strict=True):
            steps, values = run.steps[name]
            width = max(1, len(steps) // 50)
            if name != "lr" and width > 1:
                ax.plot(steps, values, color=color, lw=0.6, alpha=0.25)
                values = smoothed(values, width)
            ax.plot(steps, values, color=color, lw=1.4)
        label = lettering.line(run.name)
        label = f" {label}" if label.startswith("_") else label  # legends omit a leading "_"
        axes[0].plot([], [], color=color, label=f"{label}, training")
        if run.valid[0]:
            dots = {"color": color, "marker": "o", "ms": 3.5, "lw": 1, "ls": ":"}
            axes[0].plot(*run.valid, **dots, label=f"{label}, validation")
    for ax, label in zip(axes, MEASURES.values(), strict=True):
        ax.set_ylabel(label, color=INK, fontsize=9)
        plain_axes(ax, 8)
    axes[2].set_xlabel("step", color=INK, fontsize=9)
    legend = axes[0].legend(frameon=False, fontsize=8, labelcolor=INK, prop=lettering.font(8))
    for text in legend.get_texts():  # a name may contain dollar signs
        text.set_parse_math(False)
    return finished(figure, title, lettering, path)
