"""Running a study from its design to its report, with progress on a console."""

import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from addnorm.errors import InputError, Interrupted
from addnorm.lab.checks import prepared
from addnorm.lab.executor import cluster, processes
from addnorm.lab.grid import Variant
from addnorm.lab.halving import halve
from addnorm.lab.matching import flops_per_token
from addnorm.lab.report import write_report
from addnorm.lab.studies import Design, Study, StudySettings, read_settings, study_of
from addnorm.lab.summary import Summary, summarise
from addnorm.processor import cores
from addnorm.runs.build import count_parameters
from addnorm.runs.estimate import estimate
from addnorm.runs.recipe import Recipe
from addnorm.runs.training import Prepared

AT_ONCE = 64
"""How many cells a cluster gets at once, which hands them out to its workers."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a study is run, which does not change its figures."""

    budget: str | None = None
    halving: bool = False
    processes: int | None = None
    scheduler: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a variant costs: parameters, FLOP per token, and seconds of a cell, with its data."""

    parameters: int
    flops: float
    seconds: float


def ablate_recipe(
    recipe: Path | Recipe, folder: Path, design: Design, options: Options, console: Console
) -> list[Path]:
    """Plan a study, run it and report; return the files of the report, none for a dry run.

    Raises `InputError` for what is wrong, before anything runs, and `Interrupted` when stopped.
    """
    at_once = workers(options, design.threads)
    if options.budget is not None:
        read_budget(options.budget)  # a mistake there is said before anything is measured
    study = study_of(recipe, folder, design)
    study = checked(study, console)
    for variant in study.variants:
        if variant.refused:
            console.out(f"refused: {variant.name}: {variant.refused}", highlight=False)
    if others := len(study.left_out()):
        console.out(f"cells/ has {others} more, of other recipes, seeds, data or code: left out")
    if options.dry_run or options.budget is not None:
        costs = costs_of(study, design.threads, console)
        study = within_budget(study, costs, options, at_once, console)
        console.print(cost_table(study, costs, at_once))
    if options.dry_run:
        return []
    summary = run_study(study, options, at_once, console)
    return write_report(study, summary)


def checked(study: Study, console: Console) -> Study:
    """The study without the variants whose data or model fail, which are refused by name.

    A study all of whose cells are done is not tried again. Raises `InputError` if fewer than two
    variants are left.
    """
    if all(len(study.figures()[cell.variant]) == study.n_seeds for cell in study.cells):
        return study
    variants = prepared(study.variants, partial(console.out, highlight=False))
    if sum(one.recipe is not None for one in variants) < 2:
        reasons = "; ".join(f"{one.name}: {one.refused}" for one in variants if one.refused)
        raise InputError(f"nothing is left to compare {variants[0].name} with: {reasons}")
    return replace(study, variants=variants)


def run_study(study: Study, options: Options, at_once: int, console: Console) -> Summary:
    """Train the cells that are not finished, and compare the variants."""
    place: AbstractContextManager[Any] = (
        processes(at_once) if options.scheduler is None else cluster(options.scheduler)
    )
    try:
        with place as make, progress_bar(console) as bar:
            task = bar.add_task("starting", total=len(study.cells))

            def watch(done: int, total: int, name: str) -> None:
                bar.update(task, completed=done, total=total, description=name)

            dropped = halve(study, make, at_once, watch) if options.halving else {}
            cells = [cell for cell in study.cells if cell.variant not in dropped]
            study.run(make, at_once, cells=cells, watch=watch)
    except (KeyboardInterrupt, Interrupted):
        console.out("stopped: everything so far is saved, and the same command goes on with it")
        raise KeyboardInterrupt from None
    return summarise(study, dropped)


def progress_bar(console: Console) -> Progress:
    """A bar of cells done, and the time that is left."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)


def workers(options: Options, threads: int) -> int:
    """How many cells train at once. Raises `InputError` for more threads than there are cores."""
    if threads < 1:
        raise InputError(f"`threads = {threads}`: must be at least 1")
    if options.processes is not None and options.processes < 1:
        raise InputError(f"`processes = {options.processes}`: must be at least 1")
    if options.scheduler is not None:
        return options.processes or AT_ONCE
    here = cores()
    most = max(1, here // threads)
    wanted = most if options.processes is None else options.processes
    if threads > here:
        raise InputError(f"`threads = {threads}`: this machine has {here} cores")
    if wanted > most:
        each = f" of {threads} threads each" if threads > 1 else ""
        raise InputError(
            f"`processes = {wanted}`{each}: this machine has {here} cores, so at most {most}"
        )
    return wanted


def costs_of(study: Study, threads: int, console: Console) -> dict[int, Cost]:
    """What each variant costs, by a few steps with as many threads as a cell will have."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found: dict[int, Cost] = {}
    try:
        for index, variant in enumerate(study.variants):
            if variant.recipe is not None:
                console.out(f"measuring {variant.name}", highlight=False)
                found[index] = _cost(variant.recipe)
    finally:
        torch.set_num_threads(before)
    return found


def _cost(recipe: Recipe) -> Cost:
    begun = time.perf_counter()
    prepared = Prepared(recipe)
    preparing = time.perf_counter() - begun
    flops = flops_per_token(recipe, prepared)
    parameters = count_parameters(recipe, prepared.tokenizers, prepared.labels)
    seconds = preparing + estimate(prepared, n_timed=4).seconds
    return Cost(parameters=parameters, flops=flops, seconds=seconds)


def within_budget(
    study: Study, costs: Mapping[int, Cost], options: Options, at_once: int, console: Console
) -> Study:
    """The study with as many seeds as fit into the budget, and a line that says so.

    Raises `InputError` if not even one seed fits.
    """
    if options.budget is None:
        return study
    budget, earlier = read_budget(options.budget), read_settings(study.folder)
    once = sum(cost.seconds for cost in costs.values()) / min(at_once, len(costs))
    wanted = len(study.settings.seeds)
    fit = min(wanted, int(budget / once)) if once else wanted
    if earlier is not None and _same_plan(study, earlier, options.budget):
        fit = min(wanted, len(earlier.seeds))  # what the same command decided before
    if fit < 1:
        raise InputError(
            f"`budget = {options.budget}`: one seed of all variants takes about {once:,.0f} "
            "seconds: fewer variants or fewer steps"
        )
    if fit < wanted:
        console.out(f"budget: {fit} of {wanted} seeds fit into {options.budget}", highlight=False)
    seeds = study.settings.seeds[:fit]
    settings = replace(study.settings, seeds=seeds, budget=options.budget, wanted=wanted)
    return replace(study, settings=settings)


def _same_plan(study: Study, earlier: StudySettings, budget: str) -> bool:
    """Whether the same command, of the same recipe, began this study."""
    wanted = len(study.settings.seeds)
    same = (earlier.budget, earlier.wanted, earlier.vary) == (budget, wanted, study.settings.vary)
    return same and any(cell.folder.is_dir() for cell in study.cells)


def read_budget(text: str) -> float:
    """The seconds of `90s`, `30m`, `2h` or `1.5d`. Raises `InputError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(f"`budget = {text}`: a number with s, m, h or d, such as 30m or 2h")
    return float(found[1]) * UNITS[found[2]]


def cost_table(study: Study, costs: Mapping[int, Cost], at_once: int) -> Table:
    """The variants, what they cost, and the time that all cells take."""
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
