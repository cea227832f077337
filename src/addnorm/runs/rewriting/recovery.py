"""Recovery: some steps of training after a run was rewritten, from the weights that it has then."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from addnorm.config import first_problem
from addnorm.errors import InputError, Interrupted
from addnorm.models import Model
from addnorm.runs.evaluation import EvaluationData
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.checked_trainer import check_trainable, checked_trainer
from addnorm.runs.train.teacher import open_teacher
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.distillation import DistillationConfig
from addnorm.training.loss import CrossEntropyConfig
from addnorm.training.progress import ProgressBar
from addnorm.training.schedule import LinearConfig
from addnorm.training.settings import TrainConfig

OF_LABELS: Mapping[str, Any] = {
    "loss": CrossEntropyConfig(),
    "logit_adjustment": 0.0,
    "r_drop": 0.0,
}
"""Settings about learning labels, with the values that do nothing where a teacher replaces them."""


@dataclass(frozen=True)
class RecoveryOptions:
    """How a rewritten run recovers: so many steps, and on the old run's outputs or the labels.

    `fields` are those of the recipe that were given.
    """

    steps: int
    distill: bool
    fields: Mapping[str, str]


def recovering(
    run: TrainedModel, recipe: Recipe, model: Model, options: RecoveryOptions, console: Console
) -> tuple[Recipe, TrainedModel | None]:
    """The recipe by which a rewritten run recovers, and its teacher: with `distill`, the old run.

    `recipe` and `model` are the new ones. Without `distill` it learns the labels, or as the
    `train.distillation` among the fields says, whatever the run itself was taught by. Settings that
    are left out are named. Raises `InputError` for what training refuses.
    """
    folder = _folder(run) if options.distill else None
    train = recovery(recipe.train, options.steps, options.fields, folder)
    if run.text is not None and recipe.tokenizer is None and not train.has_tokens:
        train = replace(train, start=_folder(run))  # whose tokens it keeps
    new, teacher = replace(recipe, train=train), run if options.distill else None
    if train.distillation is not None and not options.distill:
        teacher = open_teacher(
            train.distillation.teacher, model, run.text, run.labels, run.variables
        )
    check_trainable(new, model, teacher)
    if names := [*left_out(recipe.train, train)]:
        console.out(f"recovery leaves out {', '.join(names)}", highlight=False)
    return new, teacher


def _folder(run: TrainedModel) -> Path:
    assert run.folder is not None
    return run.folder


def recovery(
    train: TrainConfig, steps: int, fields: Mapping[str, str], teacher: Path | None = None
) -> TrainConfig:
    """The recovery training: a tenth of the run's learning rate with linear decay, unless given.

    With a `teacher`, on its outputs in place of the labels. Raises `InputError` for fields that do
    not go together.
    """
    given = {name.split(".")[1] for name in fields if name.startswith("train.")}
    try:
        return replace(
            train,
            steps=steps,
            epochs=None,
            adapter=None,
            lr=train.lr if "lr" in given else train.lr / 10,
            schedule=train.schedule if "schedule" in given else LinearConfig(warmup=steps // 20),
            schedule_steps=train.schedule_steps if "schedule_steps" in given else None,
            select="last",
            average=0,
            ema=None,
            patience=None,
            validate_every=None,
            save_every=steps,
            tensorboard=False,
            **_learnt(train, given, teacher),
        )
    except ValidationError as error:
        raise InputError(f"recovery: {first_problem(error, 'train')}") from error


def _learnt(train: TrainConfig, given: set[str], teacher: Path | None) -> dict[str, Any]:
    """What recovery learns: a teacher's outputs, or the labels unless it is told otherwise."""
    if teacher is None:
        told = train.distillation if "distillation" in given else None
        return {"distillation": told and replace(told, start="random")}
    if "distillation" in given:
        raise InputError(
            f"train.distillation: the teacher is {teacher} already, and learnt from alone: leave "
            "it out, or recover without distilling"
        )
    unused = {name: value for name, value in OF_LABELS.items() if name not in given}
    return {"distillation": DistillationConfig(teacher=teacher, weight=1.0), **unused}


def left_out(before: TrainConfig, after: TrainConfig) -> Iterator[str]:
    """The settings about what is learnt that recovery leaves out."""
    for name in OF_LABELS:
        if getattr(before, name) != getattr(after, name):
            yield f"train.{name}"
    if before.distillation not in (None, after.distillation):
        yield "train.distillation"


def train_further(
    model: Model,
    recipe: Recipe,
    data: EvaluationData,
    folder: Path,
    teacher: TrainedModel | None,
    console: Console,
) -> None:
    """Train a model that is already trained, by `recovering`, with its checkpoints in `folder`.

    Raises `KeyboardInterrupt` if stopped.
    """
    batches = data.loaders.train
    with (
        ProgressBar(console) as bar,
        checked_trainer(recipe, model, batches, folder, teacher=teacher, listener=bar) as trainer,
    ):
        try:
            trainer.fit()
        except Interrupted as stopped:
            console.out("stopped: nothing was written", highlight=False)
            raise KeyboardInterrupt from stopped  # the temporary folder is discarded
    shutil.rmtree(folder / "checkpoints")
    model.eval()
