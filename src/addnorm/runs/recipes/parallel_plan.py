"""Whether a model and its training can be split over processes as a recipe plans."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import nn

from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig, DynamicTanhConfig, ScaleNormConfig
from addnorm.parts import kind_of
from addnorm.runs.recipes.consistency import Location
from addnorm.training.optim import AdadeltaConfig, AdamWConfig, MuonConfig
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.tensor import check_splits
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig

SPLIT = (AdamWConfig, MuonConfig, AdadeltaConfig)
"""The optimisers that change parts of weights as they change whole ones."""


def check_parallel(
    model: ModelConfig, train: TrainConfig, plan: ParallelTrainingConfig, place: Location
) -> None:
    """Raise `InputError` for what would not train over processes as in one, or cannot be split."""
    if plan == ParallelTrainingConfig():
        return
    if plan.data == 1 and plan.shard:
        raise InputError(
            f"{place(['parallel', 'shard'])}: parallel.shard = true splits the weights among the "
            "processes of parallel.data, which is 1: give data = 2, or leave shard out"
        )
    problems = [
        *_of_any(train),
        *(_of_rows(model, train, plan) if plan.data > 1 else ()),
        *(_of_heads(model, plan) if plan.tensor > 1 else ()),
        *(_of_weights(train) if plan.shard or plan.tensor > 1 else ()),
        *(_of_shards(model) if plan.shard else ()),
    ]
    for path, problem in problems:
        raise InputError(f"{place(path.split('.'))}: {plan}: {problem}")


def check_parts(model: nn.Module, plan: ParallelTrainingConfig) -> None:
    """Raise `InputError` for a part of a built model that does not say how it splits."""
    if plan.tensor > 1:
        check_splits(model, plan.tensor)


def _of_any(train: TrainConfig) -> Iterator[tuple[str, str]]:
    """Where training cannot be split at all: the field, and the problem with its remedy."""
    if train.distillation is not None and train.distillation.compares_layers:
        yield (
            "train.distillation",
            "layers are compared by the mean over a batch and all heads, of which each process has "
            "some: leave hidden_states and attention_transfer out, or use one process",
        )
    if train.compile:
        yield "train.compile", "a compiled step runs in one process so far: leave compile out"
    if resolve_device(train.device).type != "cpu":
        yield (
            "train.device",
            "training over processes runs on CPUs so far: give train.device = 'cpu', or use one "
            "process",
        )


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


def _of_heads(model: ModelConfig, plan: ParallelTrainingConfig) -> Iterator[tuple[str, str]]:
    """Where heads cannot be split: the field, and the problem with the nearest valid number."""
    heads = [*_heads_of(model)]

    def fit(n: int) -> bool:
        return all(of_layer.divide(n) for of_layer in heads)

    nearest = min(filter(fit, range(1, plan.tensor + 1)), key=lambda n: abs(n - plan.tensor))
    for of_layer in heads:
        if not of_layer.divide(plan.tensor):
            yield (
                of_layer.field,
                f"{of_layer} do not divide among {plan.tensor} processes: the nearest that does is "
                f"parallel.tensor = {nearest}",
            )


@dataclass(frozen=True)
class Heads:
    """The heads of the attention of a layer, of which `together` stay in one process."""

    field: str
    layer: str
    n_heads: int
    n_kv_heads: int
    together: int

    def divide(self, n: int) -> bool:
        """Whether each of n processes gets as many, or each key head as many processes."""
        queries, keys = self.n_heads // self.together, self.n_kv_heads // self.together
        return queries % n == 0 and (keys % n == 0 or n % keys == 0)

    def __str__(self) -> str:
        pairs = ", in pairs," if self.together > 1 else ""
        keys = f" and n_kv_heads = {self.n_kv_heads}" if self.n_kv_heads != self.n_heads else ""
        return f"n_heads = {self.n_heads}{keys}{pairs} of {self.layer}"


def _heads_of(model: ModelConfig) -> Iterator[Heads]:
    """Yield the heads of self- and cross-attention in each layer."""
    for stack, layers in model.stacks.items():
        for i, layer in enumerate(layers):
            named = {"attention": layer.attention}
            if stack == "decoder":
                named["cross_attention"] = layer.cross_attention
            for name, part in named.items():
                if isinstance(part, AttentionConfig):
                    heads = part.heads(model.d_model)
                    yield Heads(
                        f"model.{name}",
                        f"layer {i}" + ("" if stack == "stack" else f" of the {stack}"),
                        heads.n_heads,
                        heads.n_kv_heads,
                        2 if isinstance(part.core, DifferentialCoreConfig) else 1,
                    )


def _of_weights(train: TrainConfig) -> Iterator[tuple[str, str]]:
    """Where the states of weights cannot be split: the field, and the problem with its remedy."""
    if not isinstance(train.optimizer, SPLIT):
        yield (
            "train.optimizer",
            f"the states of {kind_of(train.optimizer)} are not split: use "
            f"{', '.join(map(kind_of, SPLIT))}, or parallel.shard = false and parallel.tensor = 1",
        )
    if train.adapter is not None:
        yield (
            "train.adapter",
            "an adapter is too small to split: use parallel.shard = false and parallel.tensor = 1",
        )


def _of_shards(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Where weights cannot be split: the field, and the problem with its remedy."""
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
