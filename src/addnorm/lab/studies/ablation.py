"""Running a study from its recipe to its report, with progress on a console."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from addnorm.errors import InputError
from addnorm.lab.executor import cluster, processes, progress_bar, workers
from addnorm.lab.studies.halving import halve
from addnorm.lab.studies.matching import flops_per_token
from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.report import write_report
from addnorm.lab.studies.study import Study, StudySettings, read_settings, study_of
from addnorm.lab.studies.summary import Summary, summarise
from addnorm.lab.studies.variants import Fields, Variant, check_several, check_start
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.cost import estimate
from addnorm.runs.train.train_run import Prepared

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a variant: parameters, FLOP per token, and seconds of a cell with its data."""

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
    """Plan a study, run it and report; return the files of the report, none for a dry run.

    Raises `InputError` for what is wrong, before anything runs, and `KeyboardInterrupt` when
    stopped.
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
    """How many cells are trained at once. Raises `InputError` for a wrong number or budget."""
    if options.budget is not None:
        read_budget(options.budget)  # so that a mistake there ends it before anything is measured
    return workers(options.processes, options.threads, options.scheduler)


def checked(study: Study, console: Console) -> Study:
    """The study, with the variants refused whose data cannot be read or model cannot be built.

    A study all of whose cells are finished is not checked again. Raises `InputError` if fewer than
    two variants are left.
    """
    if all(len(study.figures()[cell.variant]) == study.n_seeds for cell in study.cells):
        return study
    variants = check_start(study.variants, partial(console.out, highlight=False))
    check_several(variants)
    return replace(study, variants=variants)


def run_study(study: Study, options: StudyOptions, at_once: int, console: Console) -> Summary:
    """Train the cells that are not finished, and compare the variants."""
    place = cluster(options.scheduler) if options.scheduler else processes(at_once, options.threads)
    with progress_bar(console, len(study.cells)) as watch, place as make:
        dropped = halve(study, make, at_once, watch) if options.halving else {}
        cells = [cell for cell in study.cells if cell.variant not in dropped]
        study.run(make, at_once, cells=cells, watch=watch)
    return summarise(study, dropped)


def costs_of(study: Study, threads: int, console: Console) -> dict[int, Cost]:
    """The cost of each variant, estimated from a few steps with the threads of a cell."""
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
    prepared = Prepared(recipe)
    preparing = time.perf_counter() - begun
    flops = flops_per_token(recipe, prepared)
    parameters = count_parameters(recipe, prepared.tokenizers, prepared.labels)
    seconds = preparing + estimate(prepared, n_timed=4).seconds
    return Cost(parameters=parameters, flops=flops, seconds=seconds)


def within_budget(
    study: Study, costs: Mapping[int, Cost], budget: str | None, at_once: int, console: Console
) -> Study:
    """The study with as many seeds as fit into the budget, and a message if that is fewer.

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
    """Whether the same command, with the same recipe, started this study."""
    wanted = len(study.settings.seeds)
    same = (earlier.budget, earlier.wanted, earlier.vary) == (budget, wanted, study.settings.vary)
    return same and any(cell.folder.is_dir() for cell in study.cells)


def read_budget(text: str) -> float:
    """The seconds of `90s`, `30m`, `2h` or `1.5d`. Raises `InputError` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"`budget = {text}`: a number with s, m, h or d, such as 30m or 2h")
    return float(match[1]) * UNITS[match[2]]


def cost_table(study: Study, costs: Mapping[int, Cost], at_once: int) -> Table:
    """A table of the variants and their costs, and the time that all cells take."""
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
