"""The one way into training: every command's trainer is made here, by the same rules."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from addnorm.models import Model
from addnorm.runs.recipes.consistency import check_training
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.teacher import check_student
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.distillation import learned_maps
from addnorm.training.interruptions import to_standard_error
from addnorm.training.trainer import Batches, Listener, Trainer, Validation


def check_trainable(recipe: Recipe, model: Model, teacher: TrainedModel | None) -> None:
    """Raise `InputError` where a recipe, a model or its teacher break a rule of training."""
    check_training(recipe.model, recipe.train, recipe.eval, lambda _: "recipe")
    if teacher is not None:
        check_student(teacher, model)


@contextmanager
def checked_trainer(
    recipe: Recipe,
    model: Model,
    batches: Batches,
    folder: Path,
    *,
    teacher: TrainedModel | None = None,
    validation: Validation | None = None,
    listener: Listener | None = None,
    say: Callable[[str], None] = to_standard_error,
) -> Generator[Trainer]:
    """The trainer of a model by a recipe; meanwhile a student has its maps to the teacher's width.

    Raises `InputError` as `check_trainable`.
    """
    check_trainable(recipe, model, teacher)
    hidden = recipe.train.distillation and recipe.train.distillation.hidden_states
    theirs = recipe if teacher is None else teacher.recipe
    with learned_maps(model, hidden, (recipe.model.d_model, theirs.model.d_model)):
        yield Trainer(
            model,
            batches,
            recipe.train,
            folder,
            validation=validation,
            listener=listener,
            teacher=None if teacher is None else teacher.model,
            say=say,
        )
