"""Training a recipe into a run folder, whose log loggers receive too."""

import json
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import TypeAdapter
from rich.console import Console
from torch import Tensor, nn

from addnorm.atomic import atomic_write
from addnorm.convert.core.modules import places_of
from addnorm.data import Corpus
from addnorm.data.batches.batch import Batches
from addnorm.data.batches.buckets import Buckets, Loaders, build_loaders
from addnorm.data.example import has_signals
from addnorm.data.example_columns import chosen, source_texts, target_texts
from addnorm.data.ids.compact import Compact, Encoded, indices_of
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.shards.source import ShardedTexts
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.models import Model
from addnorm.parts import kind_of
from addnorm.runs.encoded_data import read_data
from addnorm.runs.evaluation import Evaluator, main_metric, measure_of, measured_with
from addnorm.runs.files.adapter_files import (
    check_dependency_digests,
    goes_by_name,
    save_adapter,
    weights_digest,
    write_dependency_digests,
)
from addnorm.runs.files.digests import (
    DATA,
    DIGESTS,
    check_same_data,
    data_digests,
    saved_valid_digest,
    valid_digest,
    write_data_digests,
)
from addnorm.runs.files.folder import (
    BASE,
    TEACHER,
    Saved,
    is_finished,
    is_quantized,
    is_run,
    read_settings,
    variables_of,
    write_recipe,
)
from addnorm.runs.files.lock import locked
from addnorm.runs.files.quantization_file import check_float
from addnorm.runs.files.resuming import check_same_run, resume_command
from addnorm.runs.files.training_machine import kernels_of
from addnorm.runs.files.weights import build_model, check_memory, count_parameters, save_model
from addnorm.runs.named_rows import transfer_of
from addnorm.runs.opening import open_by_weight
from addnorm.runs.recipes.consistency import check_training
from addnorm.runs.recipes.custom_parts import imports_of
from addnorm.runs.recipes.parallel_plan import check_parallel, check_parts
from addnorm.runs.recipes.recipe import RECIPE, Recipe
from addnorm.runs.run import Run
from addnorm.runs.saving import write_around
from addnorm.runs.train.teacher import begin_from, check_student, open_teacher
from addnorm.runs.train.warnings import size_of, warnings_for
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.adapters import Adapted, adapt
from addnorm.training.callbacks import Callback, Callbacks, Heard
from addnorm.training.checkpoint import checkpoints_in
from addnorm.training.distillation import learned_maps
from addnorm.training.interruptions import patiently
from addnorm.training.loggers import (
    LOG,
    LoggedRun,
    LoggerConfig,
    MLflowConfig,
    TensorBoardConfig,
    build_logger,
    check_loggers,
    read_journal,
)
from addnorm.training.optim import check_installed
from addnorm.training.parallel.launch import joined
from addnorm.training.parallel.plan import share_of_machine
from addnorm.training.parallel.world import OneProcess, World
from addnorm.training.precision import autocast, resolve_device
from addnorm.training.progress import ProgressBar, tell
from addnorm.training.trainer import Trainer, Validation
from addnorm.tuning.provider import check_choices


class TrainingSetup:
    """Everything before the first step: a recipe's data, tokenizers and model, loaded and built.

    With `saved`, tokenizers and labels are those of a run, else learnt from the data. A `corpus`
    takes the place of the recipe's data. What takes long is shown on the `console`. Without
    `by_name`, rows of the weights that training begins with are taken over in their order. Of the
    processes of a `world` that split the weights, none has all of them. Raises `InputError` for
    whatever is wrong with the recipe or its data.
    """

    def __init__(
        self,
        recipe: Recipe,
        saved: Saved | None = None,
        corpus: Corpus | None = None,
        console: Console | None = None,
        *,
        by_name: bool = True,
        world: World | None = None,
    ) -> None:
        world = world or OneProcess()
        check_training(recipe.model, recipe.train, recipe.eval, lambda _: "recipe")
        autocast(recipe.train.precision, resolve_device(recipe.train.device))
        check_installed(recipe.train.optimizer)
        check_loggers(recipe.train.loggers)
        self.drawn_in_parts = world.holds_pieces and _can_be_drawn_in_parts(recipe)
        parts = share_of_machine(recipe.parallel) if self.drawn_in_parts else 1.0
        check_memory(parts * count_parameters(recipe, None, (), rows=1))  # before data are read
        self.recipe, self.saved = recipe, saved
        try:
            self.data = read_data(recipe, saved, corpus, console)
        except InputError as error:
            if saved is not None and corpus is None:
                error.add_note("a run is resumed with the data that it began with")
            raise
        self.tokenizers, self.labels = self.data.tokenizers, self.data.labels
        self.learnt = None if saved or recipe.tokenizer is None else self.tokenizers
        self.encoded: EncodedCorpus = self.data.encoded
        self.loaders: Loaders = build_loaders(
            recipe.train.batching, self.encoded, recipe.train.seed
        )
        torch.manual_seed(recipe.train.seed)
        building = world if self.drawn_in_parts else None
        self.model: Model = build_model(recipe, self.tokenizers, self.labels, building, parts)
        self.variables = variables_of(self.data.corpus)
        names = (self.tokenizers, self.labels, self.variables)
        start = recipe.train.start
        self.start_report = None
        if start is not None:
            begun, weights = open_by_weight(start)
            check_float(begun, "is trained")
            transfer = transfer_of(self.model, recipe.model, names, begun, by_name=by_name)
            world.begin(self.model, lambda name, weight: transfer.into(name, weight, weights))
            self.start_report = transfer.report
        self.beside: dict[str, str] = {}
        self.teacher: TrainedModel | None = None
        if (distillation := recipe.train.distillation) is not None:
            self.teacher = open_teacher(distillation.teacher, self.model, *names)
            self.beside[TEACHER] = weights_digest(self.teacher.model)
            if distillation.start == "teacher":
                self.start_report = begin_from(self.teacher, self.model)
        self.measure_before: str | None = None
        self.adapted: Adapted | None = None
        if recipe.train.adapter is not None:
            assert self.start_report is not None
            self.beside[BASE] = weights_digest(self.model, self.start_report.transferred)
            self.adapted = adapt(self.model, recipe.train.adapter, self.start_report.fresh)

    def report(self, console: Console) -> None:
        """Print the examples and tokens of each split, and how many were skipped and why.

        Where training begins with the weights of a folder, print which of them were taken; and
        print warnings about settings that are probably mistakes.
        """
        if self.start_report is not None:
            tell(console, f"{self.started_from}: {self.start_report}")
        for split, report in self.loaders.reports.items():
            tell(console, f"{split}: {report}{self.size(split)}")
        for warning in warnings_for(self.recipe, self.data, self.loaders.train, self.learnt):
            tell(console, f"warning: {warning}")
        if self.adapted is not None and (others := self.adapted.others):
            shown = " and ".join(f"{name} ({kind})" for kind, name in others.items())
            tell(console, f"warning: train.adapter does not change {shown}")

    def size(self, split: str) -> str:
        """Describe the characters and tokens of a split, on both sides; empty without text."""
        if self.tokenizers is None:
            return ""
        loader = getattr(self.loaders, split)
        used = loader.examples if isinstance(loader, Buckets) else self.encoded.splits[split]
        if self.data.corpus is None:
            lengths = self.encoded.characters[split]
            if isinstance(loader, Buckets):
                lengths = lengths[indices_of(used)]
            return f"; {size_of(int(lengths.sum()), _tokens(used))}"
        are_used = [False] * len(examples := self.data.corpus.splits[split])
        for i in indices_of(used):
            are_used[i] = True
        examples = chosen(examples, are_used)
        target = size_of(sum(map(len, target_texts(examples))), _tokens(used, "targets"))
        if has_signals(self.encoded.medium):
            return f"; {target}"
        source = size_of(sum(map(len, source_texts(examples))), _tokens(used))
        if not self.data.corpus.kind.writes:
            return f"; {source}"
        return f"; source {source}; target {target}"

    @property
    def started_from(self) -> Path | None:
        """The folder whose weights training starts from; None for random weights."""
        train = self.recipe.train
        return train.start or (train.distillation and train.distillation.teacher)

    @property
    def parameters(self) -> str:
        """The number of parameters, and the number of those that are learned."""
        learned = count(self.model)
        if self.adapted is None:
            return f"{learned:,} parameters"
        frozen = sum(getattr(*places[0]).numel() for places in self.adapted.frozen)
        return f"{learned:,} of {learned + frozen:,} parameters are learned"

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the learned weights of the finished run, and their digests."""
        if self.adapted is None:
            save_model(folder, self.model, weights)
        else:
            assert self.recipe.train.start is not None
            save_adapter(folder, self.adapted, self.recipe.train.start)

    def run(self, folder: Path) -> Run:
        """Return the run in its state before the first step, or before resuming."""
        return Run(
            folder,
            self.recipe,
            self.tokenizers,
            self.labels,
            self.model,
            scaling=self.data.scaling,
            variables=self.variables,
            bases=self.bases,
        )

    @property
    def bases(self) -> tuple[Path, ...]:
        """The folders that hold the other files of the model that training starts from."""
        start = self.recipe.train.start
        return () if start is None else places_of(start)

    def write_settings(self, folder: Path) -> None:
        """Write all of a new run except its weights; loggers will treat it as new too."""
        (folder / IDS).unlink(missing_ok=True)
        write_data_digests(folder, self.encoded)
        if self.beside:
            write_dependency_digests(folder, self.beside)
        write_around(folder, self.run(folder))

    def write_changes(self, folder: Path) -> None:
        """Write the settings that changed, if this resumes a run."""
        if self.saved is None:
            return
        write_data_digests(folder, self.encoded)
        if self.saved.recipe != self.recipe:
            write_recipe(folder, self.recipe)

    def validation(self) -> Validation | None:
        """The validation during training; None if there are no validation data."""
        settings = self.recipe.eval
        evaluator = Evaluator.of("valid", self.data, self.loaders, settings)
        if evaluator is None:
            return None
        metric = main_metric(self.recipe)

        def score(_: nn.Module) -> dict[str, float]:
            return evaluator.evaluate(self.model, settings.valid_examples).scores

        lower = metric in self.data.task.lower_is_better
        return Validation(
            score,
            metric,
            not lower,
            self.measured_with,
            measure_of(self.recipe, valid_digest(self.encoded)),
            self.measure_before,
            bool(self.data.task.written_metrics),
        )

    def note_earlier_measure(self, folder: Path, saved: Saved) -> None:
        """Record how the best weights were chosen so far, for checkpoints without it."""
        digest = saved_valid_digest(folder)
        valid = valid_digest(self.encoded) if digest is None else digest
        self.measure_before = measure_of(saved.recipe, valid)

    def measured_with(self, metric: str) -> str:
        """Return the settings of a metric's validation scores (see `measured_with`)."""
        lowercase = self.tokenizers is not None and self.tokenizers.lowercase
        return measured_with(self.recipe, metric, validation=True, lowercase=lowercase)


def _tokens(used: Sequence[Encoded], side: Literal["tokens", "targets"] = "tokens") -> int:
    """The number of tokens on one side of the examples."""
    if isinstance(used, ShardedTexts):
        return used.n_tokens
    if isinstance(used, Compact):
        return int(getattr(used, side).lengths.sum())
    return sum(len(getattr(example, side)) for example in used)


def check_trainable(recipe: Recipe, model: Model, teacher: TrainedModel | None) -> None:
    """Raise `InputError` if a recipe, a model or its teacher breaks a rule of training."""
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
    callbacks: Sequence[Callback] = (),
    world: World | None = None,
) -> Generator[Trainer]:
    """A context with the trainer of a model, in which a student has maps to the teacher's width.

    Raises `InputError` as `check_trainable`.
    """
    check_trainable(recipe, model, teacher)
    distillation, maps = recipe.train.distillation, nullcontext()
    if teacher is not None and distillation is not None:
        widths = (recipe.model.d_model, teacher.recipe.model.d_model)
        maps = learned_maps(model, distillation.hidden_states, widths)
    with maps:
        yield Trainer(
            model,
            batches,
            recipe.train,
            folder,
            validation=validation,
            callbacks=callbacks,
            teacher=None if teacher is None else teacher.model,
            world=world,
        )


def train_run(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool,
    console: Console,
    until: int | None = None,
    patience: float | None = None,
) -> Run:
    """Train a recipe in `folder`, or resume the run there; return the finished run.

    With `until`, training pauses after that step, to be resumed. With `patience`, one of several
    processes that does nothing for so many seconds ends all. Raises `InputError` if the folder
    holds a run and `resume` is false, if the recipe is for a different run, if another process
    writes there, or for a wrong `$ADDNORM_KERNELS`; `Interrupted` and `NonFiniteError` as in
    training.
    """
    check_choices()
    check_parallel(recipe.model, recipe.train, recipe.parallel, lambda _: "recipe")
    hint = f"resume with `{resume_command(folder, recipe)}`"
    together = joined(recipe.parallel, patience=patience, hint=hint)
    with together as world, world.lead(lambda: locked(folder), nullcontext()):
        with world.in_turn():
            setup = prepared(recipe, folder, resume=resume, console=console, world=world)
            check_parts(setup.model, recipe.model.d_model, recipe.parallel)
            setup.report(console)
        if not world.same(lambda: repr(data_digests(setup.encoded))):
            raise InputError(
                f"{folder}: the processes have read other data, or learnt other tokenizers from "
                "them: give each the same files"
            )
        if world.leads:
            (folder / DIGESTS).unlink(missing_ok=True)  # no longer finished
            if setup.saved is None:
                setup.write_settings(folder)
        tell(console, f"{setup.parameters} · {folder}")
        return fit(setup, folder, console, until, world)


def prepared(
    recipe: Recipe, folder: Path, *, resume: bool, console: Console, world: World | None = None
) -> TrainingSetup:
    """The setup of a new run, or of the run to resume in `folder`; writes nothing there.

    Raises `InputError` as `train_run`.
    """
    saved = earlier(recipe, folder, resume=resume, console=console)
    by_name = saved is None or goes_by_name(folder)
    setup = TrainingSetup(recipe, saved, console=console, by_name=by_name, world=world)
    if saved is not None:
        setup.note_earlier_measure(folder, saved)
        for change in check_same_data(folder, setup.encoded):
            tell(console, change)
        check_dependency_digests(folder, setup.beside)
    return setup


def fit(
    setup: TrainingSetup,
    folder: Path,
    console: Console,
    until: int | None = None,
    world: World | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train in `folder`, from its newest checkpoint if any; return the finished or paused run.

    Of several processes the leading one writes, and calls the `callbacks` and loggers; the model of
    those that split the weights has none of them. Raises
    `Interrupted` and `NonFiniteError` as in training.
    """
    world = world or OneProcess()
    recipe = setup.recipe
    run = setup.run(folder)
    run = run.written_to(folder) if setup.adapted is None else run
    on_cpu = resolve_device(recipe.train.device).type == "cpu"
    with ExitStack() as around:
        with world.in_turn():
            if on_cpu:
                around.enter_context(kernels_of(folder, console, begins=world.leads))
        bar = around.enter_context(ProgressBar(console, run.task_value.target_unit))
        world.say = bar.say
        with checked_trainer(
            recipe,
            run.model,
            setup.loaders.train,
            folder,
            teacher=setup.teacher,
            validation=watched(setup.validation(), bar),
            callbacks=[bar, *callbacks] if world.leads else [bar],
            world=world,
        ) as trainer:
            before, heard = setup.saved and setup.saved.recipe.train, heard_so_far(folder)
            for problem in trainer.resume(before):
                tell(console, f"skipped: {problem}")
            if before is not None and trainer.finished():
                done = f"{folder}: training ended after step {trainer.state.step:,}"
                tell(console, f"{done}: nothing left to do")
            # Once the checkpoint has what it was measured by before.
            world.lead(lambda: setup.write_changes(folder), None)
            if world.leads:
                step = trainer.state.step
                around.enter_context(listening(trainer.callbacks, recipe, folder, step, heard))
            trainer.fit(until)
        if trainer.finished():

            def save(weights: Mapping[str, Tensor]) -> None:
                patiently(lambda: setup.save(folder, weights), "the model", bar.say)

            trainer.lead_whole(save, None)
    if setup.adapted is not None:
        setup.adapted.merge()
    run.model.eval()
    return run


def _can_be_drawn_in_parts(recipe: Recipe) -> bool:
    """Whether a model has no teacher, no adapter and no parts from outside."""
    train = recipe.train
    return not (train.distillation or train.adapter or imports_of(recipe))


def watched(validation: Validation | None, bar: ProgressBar) -> Validation | None:
    """The validation with a progress bar, shown if it takes long."""
    if validation is None:
        return None

    def score(model: nn.Module) -> dict[str, float]:
        with bar.busy("validating"):
            return validation.score(model)

    return replace(validation, score=score)


def earlier(recipe: Recipe, folder: Path, *, resume: bool, console: Console) -> Saved | None:
    """The settings of the run to resume; None if there is none.

    Raises `InputError` if it is the run of another recipe, or if `resume` is false.
    """
    begun = checkpoints_in(folder / "checkpoints") or is_finished(folder)
    if begun and not resume:
        raise InputError(
            f"{folder}: holds a run already. Resume it with `addnorm train --resume {folder}`, or "
            "choose another `out`."
        )
    if not resume:
        return None
    if not is_run(folder):
        tell(console, f"{folder}: no run to resume: training starts at the beginning")
        return None
    if is_quantized(folder):
        raise InputError(f"{folder}: a quantised model is not trained: train the one before")
    saved = read_settings(folder)
    for change in check_same_run(folder, saved.recipe, recipe):
        tell(console, change)
    return saved


def count(model: nn.Module) -> int:
    """The number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


IDS = "loggers.json"
"""The file with the id of the run at each logger, by the kind of the logger."""


def heard_so_far(folder: Path) -> Heard:
    """The last step and validation in a run's log, before it is cut for resuming."""
    lines = read_journal(folder / LOG).lines
    steps = [int(line["step"]) for line in lines if "loss" in line]
    validations = [int(line["step"]) for line in lines if "loss" not in line]
    return Heard(max(steps, default=0), max(validations, default=0))


@contextmanager
def listening(
    callbacks: Callbacks, recipe: Recipe, folder: Path, step: int, heard: Heard
) -> Generator[None]:
    """A context in which a recipe's loggers are among the callbacks.

    Training continues after `step`; `heard` is what the log had before. Those that are context
    managers are entered, and so are the other callbacks. Raises `InputError` if one cannot log.
    """
    for logger in recipe.train.loggers:
        run, before = _logged_run(logger, recipe, folder, step, heard)
        callbacks.add(build_logger(logger, run), before)
    with callbacks.entered():
        yield


def _logged_run(
    logger: LoggerConfig, recipe: Recipe, folder: Path, step: int, heard: Heard
) -> tuple[LoggedRun, Heard]:
    """The run as a logger needs it, and the events that the logger has already received."""
    file, kind = folder / IDS, kind_of(logger)
    ids = read_json(file, TypeAdapter(dict[str, str])) if file.is_file() else {}
    before = heard if kind in ids else Heard()
    if kind not in ids:
        ids[kind] = secrets.token_hex(8)
        atomic_write(file, json.dumps(ids, indent=1))
    run = LoggedRun(
        id=ids[kind],
        name=folder.resolve().name,
        folder=folder,
        recipe=RECIPE.dump_python(recipe, mode="json"),
        data=read_json(folder / DATA),
        step=step,
        logged_step=before.step,
    )
    # TensorBoard takes steps that are made again in place of those from before, and MLflow says
    # which it has. The others are told once: a step amid which the process ended may be missing.
    knows = isinstance(logger, TensorBoardConfig | MLflowConfig)
    return run, Heard() if knows else before
