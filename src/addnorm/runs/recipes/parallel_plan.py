"""Whether a model and its training can be split over processes as a recipe plans."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig, DynamicTanhConfig, ScaleNormConfig
from addnorm.parts import kind_of
from addnorm.runs.recipes.consistency import Location
from addnorm.training.optim import AdadeltaConfig, AdamWConfig, MuonConfig
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig

SHARDED = (AdamWConfig, MuonConfig, AdadeltaConfig)
"""The optimisers that change shards as they change whole weights."""


def check_parallel(
    model: ModelConfig, train: TrainConfig, plan: ParallelTrainingConfig, place: Location
) -> None:
    """Raise `InputError` for what would not train over processes as in one, or cannot be split."""
    if plan == ParallelTrainingConfig():
        return
    if plan.data == 1:
        raise InputError(
            f"{place(['parallel', 'shard'])}: parallel.shard = true splits the weights among the "
            "processes of parallel.data, which is 1: give data = 2, or leave shard out"
        )
    problems = [*_of_rows(model, train, plan), *(_of_shards(model, train) if plan.shard else ())]
    for path, problem in problems:
        raise InputError(f"{place(path.split('.'))}: parallel.data = {plan.data}: {problem}")


def _of_rows(
    model: ModelConfig, train: TrainConfig, plan: ParallelTrainingConfig
) -> Iterator[tuple[str, str]]:
    """Where rows cannot be split: the field, and the problem with its remedy."""
    parts = [*parts_of(model)]
    size = getattr(train.batching, "batch_size", None)
    if isinstance(size, int) and size < plan.data:
        yield (
            "train.batching.batch_size",
            f"batches of {size} rows leave a process without one: give parallel.data = {size}, or "
            f"batch_size = {plan.data}",
        )
    if any(isinstance(part, BatchNormConfig) for part in parts):
        yield (
            "model.norm",
            "batchnorm would normalise by the rows of each process and not of the batch: use "
            "another norm, or parallel.data = 1",
        )
    if any(isinstance(part, MixtureOfExpertsConfig) and part.capacity_factor for part in parts):
        yield (
            "model.feedforward.capacity_factor",
            "experts would be full by the tokens of each process and not of the batch: leave "
            "capacity_factor out, or use parallel.data = 1",
        )
    if train.distillation is not None and train.distillation.compares_layers:
        yield (
            "train.distillation",
            "layers are compared by the mean over a batch, of which each process has some rows: "
            "leave hidden_states and attention_transfer out, or use parallel.data = 1",
        )
    if train.compile:
        yield "train.compile", "a compiled step runs in one process so far: leave compile out"
    if resolve_device(train.device).type != "cpu":
        yield (
            "train.device",
            "training over processes runs on CPUs so far: give train.device = 'cpu', or "
            "parallel.data = 1",
        )


def _of_shards(model: ModelConfig, train: TrainConfig) -> Iterator[tuple[str, str]]:
    """Where weights cannot be split: the field, and the problem with its remedy."""
    if not isinstance(train.optimizer, SHARDED):
        yield (
            "train.optimizer",
            f"the states of {kind_of(train.optimizer)} are not split: use "
            f"{', '.join(map(kind_of, SHARDED))}, or parallel.shard = false",
        )
    if train.adapter is not None:
        yield "train.adapter", "an adapter is too small to split: use parallel.shard = false"
    for part in parts_of(model):
        if isinstance(part, ScaleNormConfig | DynamicTanhConfig):
            yield (
                "model.norm",
                f"{kind_of(part)} learns a single number, which has no parts: use another norm, or "
                "parallel.shard = false",
            )


def parts_of(config: Any) -> Iterator[Any]:
    """Yield every configuration in a configuration, itself first."""
    if isinstance(config, tuple):
        for entry in config:
            yield from parts_of(entry)
    elif is_dataclass(config):
        yield config
        for field in fields(config):
            yield from parts_of(getattr(config, field.name))
