"""Speed runs: how long a recipe trains to a given score, compared with the record."""

import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Column, Table

from addnorm.atomic import atomic_write, make_folder
from addnorm.errors import InputError
from addnorm.lab.digest import sources_of
from addnorm.lab.records import BOARDS, record_file
from addnorm.machine import file_name, processor
from addnorm.runs.evaluation import data_of, evaluated
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class Time:
    """One run of a recipe: the seconds of its whole process, and the score that it reached."""

    recipe: str
    seed: int
    seconds: float
    figure: float


def contenders(board: str, recipe: Path | None, folder: Path) -> dict[str, Path]:
    """Return the recipes to time: a new one and the record, or the record and its predecessor.

    All are written into `folder`, next to the times, with the files that a recipe imports. Raises
    `InputError` for a recipe that breaks the rules.
    """
    texts = {"record": record_file(board).read_text("utf-8")}
    if recipe is None:
        texts["the record before"] = record_file(board, before=True).read_text("utf-8")
    else:
        check_rules(board, recipe)
        texts = {f"{recipe.stem} (yours)": recipe.read_text("utf-8"), **texts}
    make_folder(folder)
    for file in imported(recipe) if recipe is not None else ():
        atomic_write(folder / file.name, file.read_text("utf-8"))
    recipes = {name: folder / f"{file_name(name)}.toml" for name in texts}
    for name, file in recipes.items():
        atomic_write(file, texts[name])
    return recipes


def imported(recipe: Path) -> list[Path]:
    """Return the files that a recipe imports, and those these import from their folders."""
    names = tomllib.loads(recipe.read_text("utf-8")).get("import", [])
    files = [recipe.parent / name for name in names if name.endswith(".py")]
    return [source for file in files for source in sources_of(file)]


def check_rules(board: str, recipe: Path) -> None:
    """Raise `InputError` for other data or another tokenizer than the record's, or trained weights.

    Losses of different tokenizers are of different tokens, and cannot be compared.
    """
    theirs = read_recipe(recipe, {}, import_parts=True)
    if theirs.train.start is not None:
        raise InputError(f"{recipe}: train.start: a speed run starts without trained weights")
    with as_file(record_file(board)) as file:
        ours = read_recipe(file, {})
    for table in ("data", "tokenizer"):
        if getattr(theirs, table) != getattr(ours, table):
            raise InputError(f"{recipe}: [{table}] has to be that of the board {board}")


def time_recipe(
    board: str, name: str, recipe: Path, seed: int, root: Path, console: Console
) -> Time:
    """Train a recipe in its own process, which is timed, and then evaluate it.

    The files of an earlier run are deleted, so that the time is that of a whole training.
    """
    run = recipe.with_suffix("") / f"seed-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "addnorm", "train", str(recipe), "--out", str(run)]
    fields = ["--data.root", str(root), "--train.seed", str(seed)]
    console.out(f"{board}: {name}, seed {seed}", highlight=False)
    begun = time.perf_counter()
    done = subprocess.run([*command, *fields], stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise InputError(f"{recipe}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    trained = Run.open(run)
    scores = evaluated(trained, BOARDS[board].split, data_of(trained)).scores
    return Time(recipe=name, seed=seed, seconds=seconds, figure=scores[BOARDS[board].metric])


def speedrun(
    board: str, recipe: Path | None, seeds: int, root: Path, out: Path, console: Console
) -> Table:
    """Time a board's recipes in turn, seed by seed; save and show their times."""
    if not root.is_dir():
        raise InputError(f"`root = {root}`: no such folder")
    folder = out / f"{board}-{file_name(processor())}"
    recipes = contenders(board, recipe, folder)
    times: list[Time] = []
    console.out(f"{board}: {len(recipes)} recipes in turn, each with {seeds} seeds")
    for seed in range(1, seeds + 1):
        for name, file in recipes.items():
            times.append(time_recipe(board, name, file, seed, root, console))
            facts = {"board": asdict(BOARDS[board]), "runs": [asdict(run) for run in times]}
            atomic_write(folder / "times.json", json.dumps({"on": processor(), **facts}, indent=1))
    return times_table(board, times)


def times_table(board: str, times: Sequence[Time]) -> Table:
    """A table of the recipes: median time, figures, and whether each seed reached the target."""
    goal = BOARDS[board]
    sign = "≤" if goal.lower_is_better else "≥"
    names = "seconds", "each", f"{goal.metric} {sign} {goal.target:g}", "reached"
    table = Table(Column("recipe", overflow="fold"), *names)
    for name in dict.fromkeys(run.recipe for run in times):
        runs = [run for run in times if run.recipe == name]
        reached = sum(goal.reached(run.figure) for run in runs)
        table.add_row(
            name,
            f"{median(run.seconds for run in runs):,.1f}",
            " ".join(f"{run.seconds:,.1f}" for run in runs),
            f"{fmean(run.figure for run in runs):.4g}",
            f"{reached} of {len(runs)}",
        )
    return table
