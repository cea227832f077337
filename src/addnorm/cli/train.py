"""`addnorm train`: a recipe in, a run folder out."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def train(
    recipe: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
) -> None:
    """Train a model as a recipe says.

    Any field of the recipe can be given here: `--train.lr 3e-4`, `--model.d_model 256`,
    `--model.position '{kind = "rotary"}'`.

    Parameters
    ----------
    recipe
        The TOML file with the tables data, tokenizer, model, train and eval.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder; by default `runs/` and the recipe's name.
    resume
        Go on from the newest checkpoint in the run folder.
    dry_run
        Only print the model, its parameters, tokens a step, memory and the time to expect.
    """
    from addnorm.cli.fields import fields_given
    from addnorm.cli.terminal import console
    from addnorm.runs.recipe import read_recipe
    from addnorm.runs.training import estimate, train_run

    parsed = read_recipe(recipe, fields_given(overrides))
    if dry_run:
        console.print(estimate(parsed))
        return
    folder = out or Path("runs") / recipe.stem
    train_run(parsed, folder, resume=resume, console=console)
