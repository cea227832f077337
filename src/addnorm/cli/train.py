"""`addnorm train`: train a recipe in a run folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.where import Imports, import_named
from addnorm.errors import InputError, Interrupted, nearest
from addnorm.files import check_recipe_file

if TYPE_CHECKING:
    from rich.console import Console

    from addnorm.runs.recipes.recipe import Recipe


def train(
    recipe: Path | None = None,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path | None = None,
    resume: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    imports: Imports = (),
) -> None:
    """Train a model as a recipe says.

    Any field of the recipe can be given here, after the recipe: `--train.lr 3e-4`,
    `--model.d_model 256`, `--model.position rotary`. A part of your own is
    `kind = "my_parts:MyNorm"`, with `--import my_parts.py` or `import = ["my_parts.py"]` at the top
    of the recipe. Example: `addnorm train my.toml --train.lr 3e-4 --out runs/my`.

    Parameters
    ----------
    recipe
        The TOML file with the tables data, tokenizer, model, train and eval; with `--resume`, a run
        folder is enough.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder; by default `runs/` and the recipe's name.
    resume
        Resume from the newest checkpoint in the run folder: `addnorm train --resume runs/my`. These
        may change then: steps, epochs, how often it validates and saves, patience, device.
    dry_run
        Only print the model, its parameters, tokens a step, memory at the peak and the time to
        expect. The largest batches are counted first without memory for them, and a warning says
        if they do not fit; otherwise a few steps are made. No run is written.
    """
    fields = fields_given(overrides)
    import_named(imports)
    if recipe is None:
        raise InputError(
            "train needs a recipe, a TOML file that names data, tokenizer, model and training: "
            "`addnorm train my.toml`. The README has one of ten lines, the folder recipes/ of the "
            "project one for each task"
        )
    if resume and recipe.suffix != ".toml" and not recipe.exists():
        siblings = [folder.name for folder in recipe.parent.glob("*") if folder.is_dir()]
        raise InputError(f"{recipe}: no such run folder.{nearest(recipe.name, siblings)}")
    check_recipe_file(recipe)
    from addnorm.cli.terminal import console
    from addnorm.runs.files.resuming import resume_command, resumed_recipe
    from addnorm.runs.recipes.recipe import read_recipe
    from addnorm.runs.train.train_run import train_run
    from addnorm.training.interruptions import ExhaustedError

    if recipe.is_dir():
        if not resume:
            raise InputError(f"{recipe}: a folder: resume its run with `--resume {recipe}`")
        if out not in (None, recipe):
            raise InputError(f"--out {out}: a run is resumed where it is, in {recipe}")
        parsed, folder = resumed_recipe(recipe, fields), recipe
    else:
        parsed = read_recipe(recipe, fields, import_parts=True)
        folder = out or Path("runs") / recipe.stem
    if dry_run:
        show_expectations(parsed, console)
        return
    try:
        train_run(parsed, folder, resume=resume, console=console)
    except (Interrupted, ExhaustedError) as stopped:
        stopped.add_note(f"resume with `{resume_command(folder, parsed)}`")
        raise
    console.out(f"Trained. Next: addnorm info {folder}")


def show_expectations(recipe: "Recipe", console: "Console") -> None:
    """Print what a recipe builds and needs; steps are timed if they fit into memory."""
    from addnorm.runs.description import expectation, expected_memory, planned, too_large
    from addnorm.runs.train.cost import estimate, predict_peak_memory
    from addnorm.runs.train.train_run import TrainingSetup

    setup = TrainingSetup(recipe, console=console)
    setup.report(console)
    peak = predict_peak_memory(setup)
    console.print(planned(recipe))
    console.out()
    console.print(expected_memory(peak))
    console.out()
    if problem := too_large(peak):
        console.out(f"warning: {problem}", highlight=False)
        return
    console.print(expectation(recipe, estimate(setup)))
