"""A comparison of runs: the recipe fields that differ, the cost, and the scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from addnorm.atomic import atomic_write, make_folder
from addnorm.errors import InputError
from addnorm.inspect.curves import Curves, distinct_names, training_picture
from addnorm.lab import latex
from addnorm.lab.markup import finite, plain
from addnorm.lab.statistics import barely_learnt
from addnorm.lab.studies.cell import training_times
from addnorm.lab.studies.matching import flops_per_token
from addnorm.lab.studies.variants import short_names
from addnorm.runs.files.folder import is_quantized, is_run, read_settings
from addnorm.runs.files.quantization_file import read_quantization
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.recipes.recipe import Recipe, differences, task_of
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.tasks.eval_config import LOWER_IS_BETTER
from addnorm.training.loggers import read_journal

TEXTS = ("comparison.md", "comparison.json", "comparison.tex")
PICTURES = ("curves.png", "curves.svg")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a run that a comparison shows.

    `seconds` is recorded for a cell of a study, without breaks; for any other run it is the time
    from its first file to its last step, breaks included, or that of copying for a copy. `weights`
    names their quantisation. `damaged` is the number of lines of its log that could not be read and
    do not count in the other figures. `flops` are those of a forward pass per token, None if the
    data are not available. `best` and `last` are validation scores by name, `best` of the metric
    that selects the weights.
    """

    name: str
    folder: str
    parameters: int
    flops: float | None
    steps: int
    tokens: int
    seconds: float | None
    last_loss: float | None
    metric: str
    best: float | None
    best_step: int | None
    last: Mapping[str, float] = field(default_factory=dict[str, float])
    measured_with: Mapping[str, str] = field(default_factory=dict[str, str])
    """How the last validation was measured, by metric; `best` is of those measured in the same way.
    """
    weights: str = "float32"
    damaged: int = 0
    warning: str = ""
    """That it has barely learnt."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs, with each run's value of the recipe fields that differ."""

    runs: Sequence[Facts]
    fields: Mapping[str, Sequence[Any]]


def compare(folders: Sequence[Path]) -> Comparison:
    """Compare runs, which may be unfinished.

    Raises `InputError` for a folder that is not a run, and for runs of different tasks.
    """
    unique = list({folder.resolve(): folder for folder in folders}.values())
    for folder in unique:
        if not is_run(folder):
            lacks = "no config.json" if folder.exists() else "nothing is there"
            raise InputError(f"{folder}: not a run folder: {lacks}")
    if len(unique) < 2:
        same = f", and {unique[0]} is the only one" if unique else ""
        raise InputError(f"compare needs two runs or more{same}: `compare([runs/a, runs/b])`")
    recipes = [read_settings(folder).recipe for folder in unique]
    tasks = {task_of(recipe).name: folder for recipe, folder in zip(recipes, unique, strict=True)}
    if len(tasks) > 1:
        (task, folder), (other_task, other), *_ = tasks.items()
        raise InputError(f"{folder} is for {task}, {other} for {other_task}: nothing to compare")
    names = distinct_names(unique)
    facts = [_facts(folder, name) for folder, name in zip(unique, names, strict=True)]
    return Comparison(runs=facts, fields=_fields(recipes))


def _fields(recipes: Sequence[Recipe]) -> dict[str, list[Any]]:
    """The recipe fields that differ from the first run's, with the value of each run."""
    first, fields = recipes[0], dict[str, list[Any]]()
    for index, recipe in enumerate(recipes):
        for name, (old, new) in differences(first, recipe).items():
            fields.setdefault(name, [old] * len(recipes))[index] = new
    return fields


def _facts(folder: Path, name: str) -> Facts:
    recipe, tokenizers, labels = read_settings(folder)
    logged = read_journal(folder / "metrics.jsonl")
    lines = logged.lines
    steps = {line["step"]: line for line in lines if "loss" in line}
    checks = {line["step"]: line for line in lines if "valid_loss" in line}
    metric = recipe.eval.metric or task_of(recipe).metrics[0]
    lines_of = logged.measured_with
    measured = lines_of.get(int(max(checks, default=0)), {})
    scores = {
        int(step): line[f"valid_{metric}"]
        for step, line in checks.items()
        if lines_of.get(int(step), {}).get(metric) == measured.get(metric)
        and f"valid_{metric}" in line
    }
    best_of = min if metric in LOWER_IS_BETTER else max
    quantization = read_quantization(folder) if is_quantized(folder) else None
    best = best_of(scores, key=scores.__getitem__) if scores else None
    last = list(checks.values())[-1] if checks else {}
    return Facts(
        name=name,
        folder=str(folder),
        parameters=count_parameters(recipe, tokenizers, labels),
        flops=_flops(recipe),
        steps=int(max(steps, default=0)),
        tokens=int(sum(line.get("tokens", 0) for line in steps.values())),
        seconds=_seconds(folder),
        last_loss=steps[max(steps)]["loss"] if steps else None,
        metric=metric,
        best=None if best is None else scores[best],
        best_step=best,
        last={k.removeprefix("valid_"): v for k, v in last.items() if k.startswith("valid_")},
        measured_with=measured,
        weights="float32" if quantization is None else quantization.label,
        damaged=logged.n_damaged,
        warning=_warning(folder),
    )


def _warning(folder: Path) -> str:
    if (losses := barely_learnt(folder)) is None:
        return ""
    first, last = losses
    return (
        f"has barely learnt: the training loss fell from {first:.4g} at the first step, about "
        f"chance, to {last:.4g}"
    )


def _flops(recipe: Recipe) -> float | None:
    try:
        return flops_per_token(recipe, TrainingSetup(recipe))
    except InputError:  # its data are elsewhere
        return None


def _seconds(folder: Path) -> float | None:
    """Return the time from a run's first file to its last step; without pauses for a cell."""
    if times := training_times(folder):
        return sum(times)
    first, last = folder / "machine.json", folder / "metrics.jsonl"
    if not (first.is_file() and last.is_file()):
        return None
    return max(0.0, last.stat().st_mtime - first.stat().st_mtime)


def rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The rows of the table: a name, and a cell for each run."""
    runs = comparison.runs
    metric = runs[0].metric if len({run.metric for run in runs}) == 1 else ""
    facts: list[tuple[str, list[str]]] = [
        *((name, list(map(_value, values))) for name, values in comparison.fields.items()),
        ("parameters", [f"{run.parameters:,}" for run in runs]),
        ("FLOP per token", [_number(run.flops) for run in runs]),
        ("steps", [f"{run.steps:,}" for run in runs]),
        ("tokens seen", [f"{run.tokens:,}" for run in runs]),
        ("time, recorded or first to last file", [_duration(run.seconds) for run in runs]),
        ("training loss", [_score(run.last_loss) for run in runs]),
        (f"best {metric}" if metric else "best", [_best(run, named=not metric) for run in runs]),
    ]
    if len({run.weights for run in runs}) > 1:
        facts.insert(len(comparison.fields), ("weights", [run.weights for run in runs]))
    if any(run.damaged for run in runs):
        facts.append(("lines of the log left out, damaged", [f"{run.damaged:,}" for run in runs]))
    if any(run.warning for run in runs):
        facts.append(("warning", [run.warning or "–" for run in runs]))
    names = dict.fromkeys(name for run in runs for name in run.last)
    lines = dict.fromkeys(name for run in runs for name in run.measured_with)
    facts += [
        (f"{name} is measured with", [run.measured_with.get(name, "–") for run in runs])
        for name in lines
    ]
    facts += [(f"last {name}", [_score(run.last.get(name)) for run in runs]) for name in names]
    return facts


def _value(value: Any) -> str:
    return "–" if value is None else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _best(run: Facts, *, named: bool) -> str:
    if run.best is None:
        return "–"
    return f"{f'{run.metric} ' if named else ''}{run.best:.5g} (step {run.best_step:,})"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def comparison_table(comparison: Comparison) -> Table:
    """The table for a terminal."""
    names = ["", *(escape(run.name) for run in comparison.runs)]
    table = Table(*(Column(name, overflow="fold") for name in names))
    for number, (name, cells) in enumerate(rows(comparison), 1):
        last = number == len(comparison.fields)
        table.add_row(escape(name), *map(escape, cells), end_section=last)
    return table


def comparison_markdown(comparison: Comparison) -> str:
    """The table as Markdown."""
    runs = comparison.runs
    lines = [["", *(plain(run.name) for run in runs)], ["---", *("---:" for _ in runs)]]
    lines += [[plain(name), *map(plain, cells)] for name, cells in rows(comparison)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def comparison_latex(comparison: Comparison) -> str:
    """The table as LaTeX, with short field names and without the metrics' settings."""
    fields = list(comparison.fields)
    short = dict(zip(fields, short_names(fields), strict=True))
    cells = [
        [latex.escaped(text) for text in (short.get(name, name), *row)]
        for name, row in rows(comparison)
        if name != "warning" and not name.endswith("is measured with")
    ]
    head = ["", *(latex.escaped(run.name) for run in comparison.runs)]
    return latex.table(head, cells, "runs side by side")


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write the table as Markdown, JSON and LaTeX, and the learning curves as PNG and SVG.

    Returns the paths. If a run has no steps there are no pictures, and earlier ones are deleted.
    """
    make_folder(out)
    for name in PICTURES:
        (out / name).unlink(missing_ok=True)
    atomic_write(out / TEXTS[0], comparison_markdown(comparison))
    tree = json.dumps(finite(asdict(comparison)), indent=1, ensure_ascii=False, default=str)
    atomic_write(out / TEXTS[1], tree)
    atomic_write(out / TEXTS[2], comparison_latex(comparison))
    written = [out / name for name in TEXTS]
    try:
        curves = [Curves.of(Path(run.folder), run.name) for run in comparison.runs]
    except InputError:
        return written
    for name in PICTURES:
        training_picture(curves, out / name)
    return [*written, *(out / name for name in PICTURES)]
