"""Recovery: a few training steps that continue from the weights of a rewritten run."""

import shutil
from collections.abc import Collection, Iterator, Mapping
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
from addnorm.runs.train.teacher import open_teacher
from addnorm.runs.train.train_run import check_trainable, checked_trainer
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
"""Settings for learning labels, with the values by which a teacher alone is learnt from."""


@dataclass(frozen=True)
class Recovery:
    """How a rewritten run is trained: its recipe, and an optional teacher to learn from."""

    recipe: Recipe
    teacher: TrainedModel | None
    console: Console

    @classmethod
    def of(
        cls,
        run: TrainedModel,
        new: TrainedModel,
        steps: int,
        given: Collection[str],
        console: Console,
        *,
        distill: bool = False,
    ) -> "Recovery":
        """The recovery of the rewritten run `new`; with `distill`, the old `run` is the teacher.

        Otherwise it learns the labels, or from the teacher of `train.distillation` if that is one
        of the `given` fields of the recipe, whatever the run itself learnt from. Settings that are
        left out are named on the console. Raises `InputError` for what training refuses.
        """
        before = new.recipe.train
        train = recovery(before, steps, given, _folder(run) if distill else None)
        if run.text is not None and new.recipe.tokenizer is None and not train.has_tokens:
            train = replace(train, start=_folder(run))  # whose tokens it keeps
        recipe, teacher = replace(new.recipe, train=train), run if distill else None
        if train.distillation is not None and not distill:
            folder = train.distillation.teacher
            teacher = open_teacher(folder, new.model, run.text, run.labels, run.variables)
        check_trainable(recipe, new.model, teacher)
        if names := [*left_out(before, train)]:
            console.out(f"recovery leaves out {', '.join(names)}", highlight=False)
        return cls(recipe, teacher, console)

    def train(self, model: Model, data: EvaluationData | None, folder: Path) -> None:
        """Train a rewritten model further; `folder` holds its checkpoints until the end.

        Raises `KeyboardInterrupt` if stopped.
        """
        assert data is not None
        batches = data.loaders.train
        with (
            ProgressBar(self.console) as bar,
            checked_trainer(
                self.recipe, model, batches, folder, teacher=self.teacher, callbacks=[bar]
            ) as trainer,
        ):
            try:
                trainer.fit()
            except Interrupted as stopped:
                self.console.out("stopped: nothing was written", highlight=False)
                raise KeyboardInterrupt from stopped  # the temporary folder is discarded
        shutil.rmtree(folder / "checkpoints")
        model.eval()


def _folder(run: TrainedModel) -> Path:
    """The folder of a run, which must have one.

    Raises `InputError` for one in memory, which no recipe can name.
    """
    if run.folder is None:
        raise InputError("recovery names the folder of the run: save it first, and open it there")
    return run.folder


def recovery(
    train: TrainConfig, steps: int, given: Collection[str], teacher: Path | None = None
) -> TrainConfig:
    """The recovery training: a tenth of the run's learning rate with linear decay, unless given.

    With a `teacher`, on its outputs in place of the labels. `given` are the names of the recipe's
    fields that were replaced, such as `train.lr`. Raises `InputError` for fields that contradict.
    """
    fields = {name.split(".")[1] for name in given if name.startswith("train.")}
    try:
        return replace(
            train,
            steps=steps,
            epochs=None,
            adapter=None,
            lr=train.lr if "lr" in fields else train.lr / 10,
            schedule=train.schedule if "schedule" in fields else LinearConfig(warmup=steps // 20),
            schedule_steps=train.schedule_steps if "schedule_steps" in fields else None,
            select="last",
            average=0,
            ema=None,
            patience=None,
            validate_every=None,
            save_every=steps,
            tensorboard=False,
            logger=(),
            **_objective(train, fields, teacher),
        )
    except ValidationError as error:
        raise InputError(f"recovery: {first_problem(error, 'train')}") from error


def _objective(train: TrainConfig, given: set[str], teacher: Path | None) -> dict[str, Any]:
    """Return the settings of what recovery learns: a teacher's outputs, or else the labels."""
    if teacher is None:
        distillation = train.distillation if "distillation" in given else None
        return {"distillation": distillation and replace(distillation, start="random")}
    if "distillation" in given:
        raise InputError(
            f"train.distillation: the teacher is {teacher} already, and learnt from alone: leave "
            "it out, or recover without distilling"
        )
    unused = {name: value for name, value in OF_LABELS.items() if name not in given}
    return {"distillation": DistillationConfig(teacher=teacher, weight=1.0), **unused}


def left_out(before: TrainConfig, after: TrainConfig) -> Iterator[str]:
    """The settings of the training objective that recovery does not use."""
    for name in OF_LABELS:
        if getattr(before, name) != getattr(after, name):
            yield f"train.{name}"
    if before.distillation not in (None, after.distillation):
        yield "train.distillation"
