"""Logging of training metrics: the run's log, and TensorBoard, Weights & Biases or MLflow."""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, runtime_checkable

from addnorm.config import OneOrMany, config
from addnorm.errors import InputError, Interrupted, optional
from addnorm.parts import Family, kind_of
from addnorm.training.callbacks import (
    Callback,
    Heard,
    OnSave,
    OnStep,
    OnValidation,
    SaveEvent,
    StepEvent,
    ValidationEvent,
)
from addnorm.training.interruptions import patiently, to_standard_error

MEASURED_WITH = "measured_with"
"""The field of a line with the settings that its figures depend on, by metric."""


LOG = "metrics.jsonl"
"""The name of the file in a run folder."""


class Journal:
    """Appends metrics to `metrics.jsonl`, unbuffered, so that a run can be watched live.

    Lines contain no wall-clock times, so that identical runs write identical lines. It is the
    first callback of every training. As such it waits for a disk that is full or unwritable (see
    `patiently`), which `say` reports.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = to_standard_error) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / LOG
        self.say = say

    def on_step(self, event: StepEvent) -> None:
        """Append the line of a step."""
        patiently(lambda: self.write(event.step, event.figures), "the journal", self.say)

    def on_validation(self, event: ValidationEvent) -> None:
        """Append the line of a validation."""

        def write() -> None:
            self.write(event.step, event.figures, event.measured_with)

        patiently(write, "the journal", self.say)

    def write(
        self,
        step: int,
        figures: Mapping[str, float],
        measured_with: Mapping[str, str] | None = None,
    ) -> None:
        """Append one line, `{"step": …, …}`; validations also have `measured_with`, by metric."""
        facts = {MEASURED_WITH: dict(measured_with)} if measured_with else {}
        line = json.dumps({"step": step, **figures, **facts}).encode() + b"\n"
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            length = os.fstat(handle).st_size
            if os.write(handle, line) < len(line):  # disk full: leave no partial line
                os.ftruncate(handle, length)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
        finally:
            os.close(handle)

    def flush(self) -> int:
        """Sync all lines to disk; return the file's length in bytes."""
        with self.file.open("ab") as stream:
            os.fsync(stream.fileno())
            return stream.tell()

    def cut(self, length: int) -> None:
        """Truncate the log to its length at the checkpoint from which the run resumes."""
        with self.file.open("ab") as stream:
            stream.truncate(min(length, stream.tell()))  # never extend, if lines were lost


@dataclass(frozen=True)
class Logged:
    """The intact lines of a log, and the number of damaged ones.

    `measured_with` has the settings that the figures of a validation depend on, by step and metric.
    """

    lines: Sequence[dict[str, float]]
    n_damaged: int
    measured_with: Mapping[int, Mapping[str, str]]


def read_journal(file: Path) -> Logged:
    """Read a log; a line that a crash or a full disk left incomplete is skipped and counted."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    parsed = [_figures(line) for line in lines]
    intact = [line for line in parsed if line is not None]
    return Logged(
        [figures for figures, _ in intact],
        n_damaged=parsed.count(None),
        measured_with={int(figures["step"]): facts for figures, facts in intact if facts},
    )


def _figures(line: bytes) -> tuple[dict[str, float], dict[str, str]] | None:
    """The step and metrics in a line of the log, and their settings; None if it is damaged."""
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    if not isinstance(figures, dict) or "step" not in figures:
        return None
    facts = figures.pop(MEASURED_WITH, {})
    if not (isinstance(facts, dict) and all(isinstance(fact, str) for fact in facts.values())):
        return None
    numeric = all(isinstance(value, int | float) for value in figures.values())
    return (figures, facts) if numeric else None


@dataclass(frozen=True)
class LoggedRun:
    """The facts about a run that a logger needs before training begins.

    `id` is the same whenever the run is resumed, and another for every run. `recipe` has all
    tables of the recipe, and `data` the number of examples of each split and their digest. Training
    continues after `step`, 0 at its start. `logged_step` is the last step that the logger had heard
    of before; it is later than `step` if the run broke off after its last checkpoint.
    """

    id: str
    name: str
    folder: Path
    recipe: Mapping[str, Any]
    data: Mapping[str, Mapping[str, int | str]]
    step: int = 0
    logged_step: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """The recipe, with the facts about the data in its table `dataset`."""
        return {**self.recipe, "dataset": dict(self.data)}


@runtime_checkable
class LoggerPart(Protocol):
    """A custom logger, or any callback that a recipe names: builds an object with `on_step`,
    `on_validation` or `on_save`.

    The object may be a context manager, which is left when training ends, with the exception if
    there is one. It gets no step again, however often the run is resumed.
    """

    def build(self, run: LoggedRun) -> Any:
        """Build the callback of a run that is about to train."""
        ...


@config
class TensorBoardConfig:
    """Curves for TensorBoard, in the folder `tensorboard` of the run: `tensorboard --logdir runs`.

    After a break, steps that are made again take the place of those from before.
    """

    kind: Literal["tensorboard"] = "tensorboard"

    def build(self, run: LoggedRun) -> "TensorBoard":
        """Open the folder. Raises `InputError` without the package."""
        return TensorBoard(self.package.SummaryWriter, run)

    @property
    def package(self) -> Any:
        """The package, which is part of torch."""
        return optional("torch.utils.tensorboard", "tensorboard", 'train.logger = "tensorboard"')


@config
class WandbConfig:
    """A run at Weights & Biases, named as the run folder.

    `wandb login` comes first, or `$WANDB_API_KEY`. Offline, its files are in the folder `wandb`, or
    below `$WANDB_DIR`, until `wandb sync`.
    """

    kind: Literal["wandb"] = "wandb"
    project: str = "addnorm"
    """The project of the run."""
    entity: str | None = None
    """The user or team of the project; by default that of the login."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """Whether to send the figures; `auto` does what `$WANDB_MODE` says, and sends them without."""

    def build(self, run: LoggedRun) -> "Wandb":
        """Begin the run, or continue it. Raises `InputError` without package, login or server."""
        return Wandb(self, run)

    @property
    def package(self) -> Any:
        """The package."""
        return optional("wandb", "wandb", 'train.logger = "wandb"')


@config
class MLflowConfig:
    """A run of MLflow, named as the run folder."""

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = "addnorm"
    """The experiment of the run, which is created if there is none."""
    tracking_uri: str | None = None
    """The server or file; by default that of `$MLFLOW_TRACKING_URI`, or the file `mlflow.db`."""

    def build(self, run: LoggedRun) -> "MLflow":
        """Begin the run, or continue it. Raises `InputError` without package or server."""
        return MLflow(self, run)

    @property
    def package(self) -> Any:
        """The package."""
        return optional("mlflow", "mlflow", 'train.logger = "mlflow"')


LoggerConfig = Annotated[
    TensorBoardConfig | WandbConfig | MLflowConfig | LoggerPart, Family("logger", LoggerPart)
]
"""Any logger, built-in or custom."""


LoggerConfigs = Annotated[tuple[LoggerConfig, ...], OneOrMany()]
"""One logger or a list of them."""


def check_loggers(loggers: Sequence[LoggerConfig]) -> None:
    """Raise `InputError` if the package of a logger is not installed."""
    for logger in loggers:
        if isinstance(logger, TensorBoardConfig | WandbConfig | MLflowConfig):
            _ = logger.package


def build_logger(logger: LoggerConfig, run: LoggedRun) -> Callback:
    """Build the callback of a logger. Raises `InputError` if it cannot log."""
    callback = logger.build(run)
    if not isinstance(callback, OnStep | OnValidation | OnSave):
        raise InputError(
            f"train.logger: {kind_of(logger)}.build() returns {type(callback).__name__}, which has "
            "none of the methods on_step, on_validation and on_save"
        )
    return callback


class TensorBoard:
    """Writes event files; the recipe and the digests of the data are texts at step 0."""

    def __init__(self, writer: Callable[..., Any], run: LoggedRun) -> None:
        # Readers of the files leave out what an earlier part of them has from this step on.
        purge = run.step + 1 if run.logged_step else None
        self.writer = writer(run.folder / "tensorboard", purge_step=purge)
        if not run.logged_step:
            for name, facts in (("recipe", run.recipe), ("dataset", run.data)):
                self.writer.add_text(name, f"```json\n{json.dumps(facts, indent=1)}\n```", 0)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def on_step(self, event: StepEvent) -> None:
        """Write the figures of a step."""
        self._write(event.step, event.figures)

    def on_validation(self, event: ValidationEvent) -> None:
        """Write the scores of a validation."""
        self._write(event.step, event.figures)

    def on_save(self, _: SaveEvent) -> None:
        """Flush all events, so that the files cover all steps up to the checkpoint."""
        self.writer.flush()

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)


class Wandb:
    """A run of Weights & Biases, whose id is that of our run, so that it can continue."""

    def __init__(self, config: WandbConfig, run: LoggedRun) -> None:
        wandb = config.package
        try:
            self.run = wandb.init(
                project=config.project,
                entity=config.entity,
                name=run.name,
                id=run.id,
                resume="allow",
                config=None if run.logged_step else run.facts,
                mode=None if config.mode == "auto" else config.mode,
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise InputError(
                f'train.logger = "wandb": {error}: `wandb login`, or mode = "offline"'
            ) from error

    def __enter__(self) -> "Wandb":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.run.finish(exit_code=0 if kind is None else 1)

    def on_step(self, event: StepEvent) -> None:
        """Log the figures of a step."""
        self.run.log(dict(event.figures), step=event.step)

    def on_validation(self, event: ValidationEvent) -> None:
        """Log the scores of a validation."""
        self.run.log(event.figures, step=event.step)


class MLflow:
    """A run of MLflow, found again by its tag `addnorm.run`, which holds the id of our run."""

    def __init__(self, config: MLflowConfig, run: LoggedRun) -> None:
        self.package = mlflow = config.package
        try:
            self.client = mlflow.MlflowClient(tracking_uri=config.tracking_uri)
            resumed = self._resumed(config.experiment, run)
            self.run_id = resumed or self._begun(config, run)
            self.heard = self._heard() if resumed else Heard()
        except mlflow.exceptions.MlflowException as error:
            raise InputError(f'train.logger = "mlflow": {error}') from error

    def _resumed(self, experiment: str, run: LoggedRun) -> str | None:
        """Continue the MLflow run that has our run's tag, if any; return its MLflow id."""
        there = self.client.get_experiment_by_name(experiment)
        if there is None:
            return None
        same = f"tags.`{_TAG}` = '{run.id}'"
        runs = self.client.search_runs([there.experiment_id], same)
        for earlier in runs:
            self.client.update_run(earlier.info.run_id, status="RUNNING")
        return runs[0].info.run_id if runs else None

    def _heard(self) -> Heard:
        """The last step and validation that the server has: training may have ended amid a step."""
        names = self.client.get_run(self.run_id).data.metrics
        last: dict[bool, int] = {}
        for is_score in (False, True):
            name = next((name for name in names if name.startswith("valid_") == is_score), None)
            points = self.client.get_metric_history(self.run_id, name) if name else ()
            last[is_score] = max((point.step for point in points), default=0)
        return Heard(last[False], last[True])

    def _begun(self, config: MLflowConfig, run: LoggedRun) -> str:
        """Begin an MLflow run with the recipe and the data as parameters; return its MLflow id."""
        there = self.client.get_experiment_by_name(config.experiment)
        number = there.experiment_id if there else self.client.create_experiment(config.experiment)
        created = self.client.create_run(number, run_name=run.name, tags={_TAG: run.id})
        params = [
            self.package.entities.Param(name, _shortened(value))
            for name, value in _flat(run.facts)
            if value is not None
        ]
        for start in range(0, len(params), _PARAMS):
            self.client.log_batch(created.info.run_id, params=params[start : start + _PARAMS])
        return created.info.run_id

    def __enter__(self) -> "MLflow":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt | Interrupted)
        status = "FINISHED" if kind is None else "KILLED" if stopped else "FAILED"
        self.client.set_terminated(self.run_id, status=status)

    def on_step(self, event: StepEvent) -> None:
        """Log the figures of a step that the server lacks."""
        if event.step > self.heard.step:
            self._write(event.step, event.figures)

    def on_validation(self, event: ValidationEvent) -> None:
        """Log the scores of a validation that the server lacks."""
        if event.step > self.heard.validation:
            self._write(event.step, event.figures)

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        metric = self.package.entities.Metric
        metrics = [metric(name, value, now, step) for name, value in figures.items()]
        self.client.log_batch(self.run_id, metrics=metrics)


_TAG = "addnorm.run"
_PARAMS = 100
"""The most parameters of a call."""
_LONGEST = 500
"""The most characters of a parameter that every server stores."""


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by dotted name."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(cast(Mapping[str, Any], value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
