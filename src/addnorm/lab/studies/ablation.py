"""Running a study from its recipe to its report: `addnorm ablate`, and `study` from Python."""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from addnorm.errors import InputError, check_choice, choices
from addnorm.lab.executor import cluster, processes, progress_bar, workers
from addnorm.lab.studies.halving import halve
from addnorm.lab.studies.matching import flops_per_token
from addnorm.lab.studies.options import Match, StudyOptions
from addnorm.lab.studies.report import markdown, write_report
from addnorm.lab.studies.study import RESULTS, Study, StudySettings, read_settings, study_of
from addnorm.lab.studies.summary import Summary, summarise
from addnorm.lab.studies.variants import (
    Fields,
    Variant,
    check_several,
    check_start,
    toml_value,
    without_repeats,
)
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.cost import estimate
from addnorm.runs.train.train_run import TrainingSetup

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a variant: parameters, FLOP per token, and seconds for a cell."""

    parameters: int
    flops: float
    seconds: float


def ablate_recipe(
    recipe: Path,
    folder: Path,
    vary: Mapping[str, Sequence[str]],
    options: StudyOptions,
    console: Console,
    *,
    dry_run: bool = False,
    imports: Sequence[str] = (),
    overrides: Fields | None = None,
) -> list[Path]:
    """Plan a study, run it and report; return the report's files, none for a dry run.

    Raises `InputError` for a wrong recipe, value or option, before anything runs, and
    `KeyboardInterrupt` when stopped.
    """
    at_once = check_options(options)
    study = study_of(recipe, folder, vary, options, imports=imports, overrides=overrides)
    study = checked(study, console)
    for variant in study.variants:
        if variant.refused:
            console.out(f"refused: {variant.name}: {variant.refused}", highlight=False)
    if others := len(study.left_out()):
        console.out(f"cells/ has {others} more, of other recipes, seeds, data or code: left out")
    if dry_run or options.budget is not None:
        costs = costs_of(study, options.threads, console)
        study = within_budget(study, costs, options.budget, at_once, console)
        console.print(cost_table(study, costs, at_once))
    if dry_run:
        return []
    summary = run_study(study, options, at_once, console)
    return write_report(study, summary)


def check_options(options: StudyOptions) -> int:
    """Check the options, and return how many cells to train at once.

    Raises `InputError` for a wrong option.
    """
    if options.budget is not None:
        read_budget(options.budget)  # a mistake is found before anything is measured
    return workers(options.processes, options.threads, options.scheduler)


def checked(study: Study, console: Console) -> Study:
    """Mark variants whose data or model cannot be built as refused; return the study.

    A study whose cells are all finished is not checked again. Raises `InputError` if fewer than
    two variants are left.
    """
    if all(len(study.figures()[cell.variant]) == study.n_seeds for cell in study.cells):
        return study
    variants = check_start(study.variants, partial(console.out, highlight=False))
    check_several(variants)
    return replace(study, variants=variants)


def run_study(study: Study, options: StudyOptions, at_once: int, console: Console) -> Summary:
    """Train the unfinished cells, and compare the variants."""
    executors = (
        cluster(options.scheduler) if options.scheduler else processes(at_once, options.threads)
    )
    with progress_bar(console, len(study.cells)) as watch, executors as make:
        dropped = halve(study, make, at_once, watch) if options.halving else {}
        cells = [cell for cell in study.cells if cell.variant not in dropped]
        study.run(make, at_once, cells=cells, watch=watch)
    return summarise(study, dropped)


def costs_of(study: Study, threads: int, console: Console) -> dict[int, Cost]:
    """Estimate each variant's cost from a few steps, with the threads of a cell."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    costs: dict[int, Cost] = {}
    try:
        for index, variant in enumerate(study.variants):
            if variant.recipe is not None:
                console.out(f"measuring {variant.name}", highlight=False)
                costs[index] = _cost(variant.recipe)
    finally:
        torch.set_num_threads(before)
    return costs


def _cost(recipe: Recipe) -> Cost:
    begun = time.perf_counter()
    prepared = TrainingSetup(recipe)
    preparing = time.perf_counter() - begun
    flops = flops_per_token(recipe, prepared)
    parameters = count_parameters(recipe, prepared.tokenizers, prepared.labels)
    seconds = preparing + estimate(prepared, n_timed=4).seconds
    return Cost(parameters=parameters, flops=flops, seconds=seconds)


def within_budget(
    study: Study, costs: Mapping[int, Cost], budget: str | None, at_once: int, console: Console
) -> Study:
    """Return the study with as many seeds as the budget allows; print if there are fewer.

    Raises `InputError` if not even one seed fits.
    """
    if budget is None:
        return study
    seconds, earlier = read_budget(budget), read_settings(study.folder)
    once = sum(cost.seconds for cost in costs.values()) / min(at_once, len(costs))
    wanted = len(study.settings.seeds)
    fit = min(wanted, int(seconds / once)) if once else wanted
    if earlier is not None and _same_plan(study, earlier, budget):
        fit = min(wanted, len(earlier.seeds))  # what the same command decided before
    if fit < 1:
        raise InputError(
            f"`budget = {budget}`: one seed of all variants takes about {once:,.0f} "
            "seconds: fewer variants or fewer steps"
        )
    if fit < wanted:
        console.out(f"budget: {fit} of {wanted} seeds fit into {budget}", highlight=False)
    seeds = study.settings.seeds[:fit]
    settings = replace(study.settings, seeds=seeds, budget=budget, wanted=wanted)
    return replace(study, settings=settings)


def _same_plan(study: Study, earlier: StudySettings, budget: str) -> bool:
    """Return whether this study was started by the same command with the same recipe."""
    wanted = len(study.settings.seeds)
    same = (earlier.budget, earlier.wanted, earlier.vary) == (budget, wanted, study.settings.vary)
    return same and any(cell.folder.is_dir() for cell in study.cells)


def read_budget(text: str) -> float:
    """Convert `90s`, `30m`, `2h` or `1.5d` to seconds. Raises `InputError` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"`budget = {text}`: a number with s, m, h or d, such as 30m or 2h")
    return float(match[1]) * UNITS[match[2]]


def cost_table(study: Study, costs: Mapping[int, Cost], at_once: int) -> Table:
    """Return a table of the variants' costs, with the time for all cells."""
    n_seeds = len(study.settings.seeds)
    total = n_seeds * sum(cost.seconds for cost in costs.values()) / at_once
    table = Table(
        Column("variant", overflow="fold"),
        "parameters",
        "FLOP per token",
        "minutes a cell",
        caption=f"{n_seeds} seeds each, {at_once} at once: about {total / 60:,.1f} minutes in all; "
        "start-up, validation and pictures come on top",
    )
    for index, cost in costs.items():
        table.add_row(
            escape(_titled(study.variants[index])),
            f"{cost.parameters:,}",
            f"{cost.flops:,.0f}",
            f"{cost.seconds / 60:,.2f}",
        )
    return table


def _titled(variant: Variant) -> str:
    changed = ", ".join(f"{name} = {value}" for name, value in variant.adjusted.items())
    return f"{variant.name} ({changed})" if changed else variant.name


@dataclass(frozen=True, repr=False)
class StudyTable:
    """The results of a study.

    Attributes
    ----------
    cells
        A dictionary for each finished variant and seed: `variant`, `seed`, `state`, scores,
        `parameters`, `tokens`, `seconds`, and the `problem` of a training that met NaN or an
        infinite number. All have the same names, with None for missing values, so that
        `pandas.DataFrame(table.cells)` and `polars.DataFrame(table.cells)` work.
    variants
        A dictionary for each variant, in the same form: mean, interval, difference to the first,
        interval over test examples, effect, p, verdict; how many seeds `diverged` or are `missing`,
        and why it was `dropped`.
    text
        The report as Markdown, which notebooks show.
    folder
        The folder with the runs, the report and the pictures.
    """

    cells: Sequence[Mapping[str, Any]]
    variants: Sequence[Mapping[str, Any]]
    text: str
    folder: Path

    def __repr__(self) -> str:
        n, cells = len(self.variants), len(self.cells)
        return f"<StudyTable of {n} variants, {cells} cells: {self.folder}>"

    def _repr_markdown_(self) -> str:
        return self.text


def study(
    recipe: str | PathLike[str] | Recipe,
    *,
    vary: Mapping[str, Sequence[Any]],
    folder: str | PathLike[str] | None = None,
    imports: str | Sequence[str] = (),
    progress: bool = True,
    **options: Any,
) -> StudyTable:
    """Train every combination of some values with several seeds, and compare them with the first.

    `vary` has the values of each field, as text in a recipe, as numbers, or as configurations:
    `{"model.norm": [LayerNormConfig(), "rmsnorm"]}`. The study is kept in `folder`, by default a
    new temporary one; called again with the same folder, it does not train finished cells again.
    Cells are trained in other processes, so a script calls this below `if __name__ ==
    "__main__":`. Custom parts are named by their files in `imports`. `progress` shows a bar.
    `options` are the fields of `StudyOptions`, which are those of `addnorm ablate`. Raises
    `InputError` as `addnorm ablate` does, and for a refused variant, which that command reports
    and leaves out.
    """
    source, values, chosen = _source(recipe), _values_to_vary(vary), _options(options)
    files = (imports,) if isinstance(imports, str) else tuple(imports)
    import_parts(files)
    at_once = check_options(chosen)
    console = Console(stderr=True, quiet=not progress)
    out = Path(folder or mkdtemp(prefix="study-"))
    planned = checked(study_of(source, out, values, chosen, imports=files), console)
    for variant in planned.variants:
        if variant.refused:
            raise InputError(f"{variant.name}: {variant.refused}")
    if chosen.budget is not None:
        costs = costs_of(planned, chosen.threads, console)
        planned = within_budget(planned, costs, chosen.budget, at_once, console)
    summary = run_study(planned, chosen, at_once, console)
    write_report(planned, summary)
    lines = (planned.folder / RESULTS).read_text("utf-8").splitlines()
    text = markdown(planned, summary, "en", [])
    return StudyTable(cell_rows(lines), variant_rows(summary), text, planned.folder)


def _options(given: Mapping[str, Any]) -> StudyOptions:
    """Convert keywords to the options of a study.

    Raises `InputError` for an unknown name or a wrong type.
    """
    names = [field.name for field in fields(StudyOptions)]
    for name in given:
        if name not in names:
            valid = [*names, "vary", "folder", "imports", "progress"]
            raise InputError(f"study() has no argument {name}.{choices(name, valid)}")
    options = StudyOptions(**given)
    for name, n in (("seeds", options.seeds), ("threads", options.threads)):
        if type(n) is not int:
            raise InputError(f"{name} = {n!r}: must be an integer, such as 3")
    if options.match is not None:
        check_choice("match", options.match, get_args(Match))
    return options


def _source(recipe: Any) -> Path | Recipe:
    """Return the given recipe, or its file. Raises `InputError` for anything else."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str | PathLike):
        raise InputError(f"recipe = {recipe!r}: the path of a recipe, or a Recipe")
    file = Path(recipe)
    if not file.is_file():
        raise InputError(f"{file}: no such recipe")
    return file


def _values_to_vary(vary: Any) -> dict[str, list[str]]:
    """Return the values of each field as texts. Raises `InputError` for one value, or none."""
    if not isinstance(vary, Mapping):
        raise InputError(f"vary = {vary!r}: a dictionary of fields and their values")
    fields: Mapping[str, Any] = vary
    texts: dict[str, list[str]] = {}
    for name, values in fields.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"vary: {name} = {values!r} is one value: give a list of them")
        texts[name] = without_repeats([toml_value(value) for value in values], f"vary: {name}")
        if not texts[name]:
            raise InputError(f"vary: {name} has no values: give two or more")
    return texts


def cell_rows(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the lines of `results.jsonl` with the same names in all; None for missing values.

    The numbers of a column have one type, for libraries that take it from the first row.
    """
    cells: list[dict[str, Any]] = [json.loads(line) for line in lines]
    names = dict.fromkeys(name for cell in cells for name in cell if name != "problem")
    return [
        {name: cell.get(name) for name in names} | {"problem": cell.get("problem", "")}
        for cell in cells
    ]


def variant_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return a flat dictionary for each variant; None for missing values."""
    rows: list[dict[str, Any]] = []
    for row in summary.rows:
        difference, mean, examples = row.difference, row.mean, row.examples
        rows.append(
            {
                "variant": row.name,
                "seeds": len(row.values),
                summary.metric: None if mean is None else mean.mean,
                "low": None if mean is None else mean.low,
                "high": None if mean is None else mean.high,
                "difference": None if difference is None else difference.interval.mean,
                "difference_low": None if difference is None else difference.interval.low,
                "difference_high": None if difference is None else difference.interval.high,
                "examples_low": None if examples is None else examples.low,
                "examples_high": None if examples is None else examples.high,
                "effect": None if difference is None else difference.effect,
                "p": None if difference is None else difference.adjusted,
                "verdict": None if difference is None else difference.verdict,
                "better": summary.better(row),
                "diverged": row.diverged,
                "missing": row.missing,
                "dropped": row.dropped,
                "parameters": row.parameters,
                "seconds": row.seconds,
            }
        )
    return rows
