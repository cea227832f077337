"""`addnorm distill`: train a student on the outputs of a teacher."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.main import NewPlace
from addnorm.cli.where import GROUP, ON_CPU, Imports, import_named
from addnorm.errors import InputError
from addnorm.files import check_model_folder, read_toml
from addnorm.runs.options import DistillOptions

AS_IN_RECIPE: DistillOptions = {}


def distill(
    teacher: Path,
    recipe: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    outputs: Annotated[DistillOptions, GROUP] = AS_IN_RECIPE,
    sequences: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    out: NewPlace | None = None,
    imports: Imports = (),
) -> None:
    """Train the recipe of a student on the outputs of a teacher, and on the labels.

    The student is of any architecture; its tokens are the teacher's, so its recipe may leave
    [tokenizer] out. It is a run like any other, with `train.distillation` in its recipe: one that
    was stopped is resumed with `addnorm train --resume`. For a student with some of the teacher's
    layers, `addnorm swap TEACHER --set n_layers=3` writes the folder to give as `train.start`.
    Example: `addnorm distill runs/large small.toml --temperature 2 --out runs/small`.

    Parameters
    ----------
    teacher
        The folder of the teacher: a run, or one from Hugging Face.
    recipe
        The recipe of the student.
    overrides
        Fields of the recipe to replace, as `--table.field value`.
    sequences
        First have the teacher translate every training source, once, and learn its translations in
        place of the data's (sequence-level distillation).
    out
        The run folder; by default `runs/`, the recipe's name and `-distilled`.
    """
    fields = fields_given(overrides)
    if (given := fields.get("train.distillation.teacher")) is not None:
        raise InputError(f"--train.distillation.teacher {given}: the teacher is {teacher} already")
    import_named(imports)
    check_model_folder(teacher)
    read_toml(recipe)
    from addnorm.cli.terminal import console
    from addnorm.cli.train import train
    from addnorm.runs.recipes.recipe import read_recipe
    from addnorm.runs.train.teacher import written_sequences

    folder = out or Path("runs") / f"{recipe.stem}-distilled"
    fields["train.distillation.teacher"] = str(teacher)
    for name, value in outputs.items():
        field = f"train.distillation.{name}"
        if field in fields:
            raise InputError(f"--{name} and --{field} are the same: give one of them")
        fields[field] = str(value)
    if sequences:
        parsed = read_recipe(recipe, fields, import_parts=True)
        files = written_sequences(ON_CPU.open(teacher), parsed, folder, console)
        fields["data.train"] = json.dumps([str(file) for file in files])
    words = [word for name, value in fields.items() for word in (f"--{name}", value)]
    train(recipe, *words, out=folder, imports=imports)
