"""`addnorm train`: train a recipe in a run folder."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.main import NewPlace, at_least, lasting_imports
from addnorm.cli.where import Imports, import_named
from addnorm.errors import InputError, Interrupted, RankLostError, nearest
from addnorm.files import read_toml

if TYPE_CHECKING:
    from rich.console import Console

    from addnorm.runs.recipes.recipe import Recipe


def train(
    recipe: Path | None = None,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: NewPlace | None = None,
    resume: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    imports: Imports = (),
    processes: Annotated[int | None, Parameter(validator=at_least(1))] = None,
    patience: Annotated[float, Parameter(validator=at_least(1))] = 600.0,
) -> int:
    """Train a model as a recipe says.

    Any field of the recipe can be given here, after the recipe: `--train.lr 3e-4`,
    `--model.d_model 256`, `--model.position rotary`. A part of your own is
    `kind = "my_parts:MyNorm"`, with `--import my_parts.py` or `import = ["my_parts.py"]` at the top
    of the recipe. Example: `addnorm train my.toml --train.lr 3e-4 --out runs/my`.

    Parameters
    ----------
    recipe
        The TOML file with the tables data, tokenizer, model, train, eval and parallel; with
        `--resume`, a run folder is enough.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder; by default `runs/` and the recipe's name.
    resume
        Resume from the newest checkpoint in the run folder: `addnorm train --resume runs/my`. These
        may change then: steps, epochs, how often it validates and saves, patience, device, and over
        how many processes it is split.
    dry_run
        Only print the model, its parameters, tokens a step, memory at the peak and the time to
        expect. The largest batches are counted first without memory for them, and a warning says
        if they do not fit; otherwise a few steps are made. No run is written.
    processes
        Start so many processes on this machine, which split the work as `[parallel]` in the recipe
        says: `addnorm train my.toml --processes 2 --parallel.data 2`. `torchrun --nproc-per-node 2
        -m addnorm train my.toml` does the same, and connects several machines.
    patience
        Seconds after which one of several processes that does nothing is named, with the last
        exchange of each, and all end. One that is slow is left alone: that computes, validates or
        saves.
    """
    fields = fields_given(overrides)
    import_named(imports)
    named = recipe_named(recipe, resume=resume)
    with lasting_imports():
        from addnorm.cli.terminal import console
        from addnorm.training.parallel.plan import check_processes, launched

    parsed, folder = recipe_and_folder(named, fields, out, resume=resume)
    if dry_run:
        show_expectations(parsed, console)
        return 0
    here = launched()
    check_processes(parsed.parallel, max(here.processes, processes or 1))
    if processes is not None and processes > here.processes:
        options = [*(["--resume"] if resume else []), *([] if out is None else ["--out", str(out)])]
        options += [word for name in imports for word in ("--import", name)]
        options += ["--patience", str(patience)]
        return in_processes(processes, [str(named), *overrides, *options], folder, parsed)
    return trained(parsed, folder, here.rank, resume=resume, patience=patience)


def recipe_named(recipe: Path | None, *, resume: bool) -> Path:
    """The recipe that is given by name, or that of the run to resume.

    Raises `InputError` without one, or for another file.
    """
    if recipe is None:
        raise InputError(
            "train needs a recipe, a TOML file that names data, tokenizer, model and training: "
            "`addnorm train my.toml`. The README has one of ten lines, the folder recipes/ of the "
            "project one for each task"
        )
    if resume and recipe.suffix != ".toml" and not recipe.exists():
        siblings = [folder.name for folder in recipe.parent.glob("*") if folder.is_dir()]
        raise InputError(f"{recipe}: no such run folder.{nearest(recipe.name, siblings)}")
    if not recipe.is_dir():
        read_toml(recipe)
    return recipe


def recipe_and_folder(
    recipe: Path, fields: dict[str, str], out: Path | None, *, resume: bool
) -> "tuple[Recipe, Path]":
    """The recipe, from a file or from the run to resume, and the run folder."""
    with lasting_imports():
        from addnorm.runs.files.folder import is_run
        from addnorm.runs.files.resuming import resumed_recipe
        from addnorm.runs.recipes.recipe import read_recipe

    if not recipe.is_dir():
        return read_recipe(recipe, fields, import_parts=True), out or Path("runs") / recipe.stem
    if not resume:
        if is_run(recipe):
            raise InputError(f"{recipe}: a folder: resume its run with `--resume {recipe}`")
        names = ", ".join(sorted(file.name for file in recipe.glob("*.toml") if file.is_file())[:5])
        there = f"; in it: {names}" if names else ""
        raise InputError(f"{recipe}: a folder, where train needs a recipe, a TOML file{there}")
    if out not in (None, recipe):
        raise InputError(f"--out {out}: a run is resumed where it is, in {recipe}")
    return resumed_recipe(recipe, fields), recipe


def trained(
    recipe: "Recipe", folder: Path, rank: int, *, resume: bool, patience: float | None = None
) -> int:
    """Train in this process; return the exit status."""
    with lasting_imports():
        from addnorm.cli.terminal import console
        from addnorm.runs.files.resuming import resume_command
        from addnorm.runs.train.train_run import train_run
        from addnorm.training.interruptions import ExhaustedError

    if rank:
        from rich.console import Console

        from addnorm.runs.files.rank_log import RankLog, speak_into

        speak_into(RankLog(folder, rank))
        console = Console(stderr=True, highlight=False)
        console.out(f"rank {rank} is process {os.getpid()}")
    try:
        train_run(recipe, folder, resume=resume, console=console, patience=patience)
    except (Interrupted, ExhaustedError, RankLostError) as stopped:
        stopped.add_note(f"resume with `{resume_command(folder, recipe)}`")
        raise
    console.out(f"Trained. Next: addnorm info {folder}")
    return 0


def in_processes(processes: int, words: list[str], folder: Path, recipe: "Recipe") -> int:
    """Train in several processes of this machine; return the exit status."""
    from addnorm.cli.main import failed
    from addnorm.training.parallel.launch import started

    ended = started(["train", *words], processes)
    if ended.number:
        return failed(f"{ended} {progress(folder, recipe)}", ended.status)
    if ended.status and ended.rank:
        begun = f" {progress(folder, recipe)}" if ended.status == 1 else ""
        return failed(f"{ended}{begun}: see {folder}/ranks/{ended.rank}.log", ended.status)
    return ended.status


def progress(folder: Path, recipe: "Recipe") -> str:
    """How far an interrupted training came, and the command that resumes it."""
    from addnorm.runs.files.resuming import resume_command
    from addnorm.training.checkpoint import latest_checkpoint
    from addnorm.training.loggers import read_journal

    lines = read_journal(folder / "metrics.jsonl").lines
    last = int(lines[-1]["step"]) if lines else 0
    newest, _ = latest_checkpoint(folder / "checkpoints")
    saved = 0 if newest is None else int(newest.name.removeprefix("step-"))
    return (
        f"after step {last}; saved is everything up to step {saved}; resume with "
        f"`{resume_command(folder, recipe)}`"
    )


def show_expectations(recipe: "Recipe", console: "Console") -> None:
    """Print the parts and costs of a recipe; steps are timed if they fit into memory."""
    from addnorm.runs.description import (
        expectation,
        expected_memory,
        exports,
        facts,
        planned,
        too_large,
    )
    from addnorm.runs.train.cost import estimate, predict_peak_memory
    from addnorm.runs.train.train_run import TrainingSetup
    from addnorm.runs.trained_model import TrainedModel

    setup = TrainingSetup(recipe, console=console)
    setup.report(console)
    peak = predict_peak_memory(setup)
    console.print(planned(recipe))
    console.out()
    if setup.adapted is None:
        plain = TrainedModel(None, recipe, setup.tokenizers, setup.labels, setup.model)
        console.print(facts(exports(plain)))
        console.out()
    console.print(expected_memory(peak))
    console.out()
    if problem := too_large(peak):
        console.out(f"warning: {problem}", highlight=False)
        return
    console.print(expectation(recipe, estimate(setup)))
