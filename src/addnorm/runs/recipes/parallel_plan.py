"""Checks whether a model and its training can be split over processes as a recipe plans."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DualEncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.earlier_layers import reads_of
from addnorm.models.layers import WITHOUT_POSITIONS, LayerParts
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig, LatentAttentionConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoMixerConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    DynamicErfConfig,
    DynamicTanhConfig,
    ScaleNormConfig,
)
from addnorm.parts import kind_of
from addnorm.runs.recipes.consistency import Location
from addnorm.training.optim import AdadeltaConfig, AdamWConfig, MuonConfig
from addnorm.training.parallel.context import check_texts
from addnorm.training.parallel.own_parts import (
    check_batch_norms,
    check_rows_alone,
    check_tokens_alone,
)
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.tensor import check_splits
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig

SPLIT = (AdamWConfig, MuonConfig, AdadeltaConfig)
"""The optimisers that change parts of weights as they change whole ones."""


def check_parallel(
    model: ModelConfig, train: TrainConfig, plan: ParallelTrainingConfig, place: Location
) -> None:
    """Raise `InputError` for settings that cannot be split, or would train otherwise when split."""
    if plan == ParallelTrainingConfig():
        return
    if plan.shard and plan.data == plan.context == 1:
        raise InputError(
            f"{place(['parallel', 'shard'])}: parallel.shard = true splits the weights among the "
            "processes of parallel.data and context, which is 1: give data = 2, or leave shard out"
        )
    problems = [
        *_of_pairs(model),
        *_of_any(train),
        *_of_tokens_ahead(model, plan),
        *_of_earlier_layers(model, plan),
        *(_of_rows(model, train, plan) if plan.data > 1 else ()),
        *(_of_positions(model, plan) if plan.context > 1 else ()),
        *(_of_heads(model, plan) if plan.tensor > 1 else ()),
        *(_of_layers(model, plan) if plan.pipeline > 1 else ()),
        *(_of_weights(train) if plan.splits_weights else ()),
        *(_of_shards(model) if plan.shard else ()),
    ]
    for path, problem in problems:
        raise InputError(f"{place(path.split('.'))}: {plan}: {problem}")


def check_parts(model: nn.Module, d_model: int, plan: ParallelTrainingConfig) -> None:
    """Raise `InputError` for a part of a built model that cannot be split as planned."""
    if plan.processes > 1:
        split = "rows" if plan.data > 1 else "positions" if plan.context > 1 else "part"
        check_batch_norms(model, split, "one process")
    if plan.data > 1:
        check_rows_alone(model, d_model)
    if plan.context > 1:
        check_texts(model)
        check_tokens_alone(model, d_model)
    if plan.tensor > 1:
        check_splits(model, plan.tensor)


def _of_pairs(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Problems of comparing pairs: the field, and the problem with its remedy."""
    if isinstance(model, DualEncoderConfig):
        yield (
            "model.kind",
            "each picture is compared with all texts of its batch, which processes would divide: "
            "train a dual_encoder in one process, without [parallel]",
        )


def _of_any(train: TrainConfig) -> Iterator[tuple[str, str]]:
    """Problems of any split: the field, and the problem with its remedy."""
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


def _of_tokens_ahead(model: ModelConfig, plan: ParallelTrainingConfig) -> Iterator[tuple[str, str]]:
    """Problems of multi-token prediction: the field, and the problem with its remedy."""
    split = [name for name in ("context", "tensor", "pipeline") if getattr(plan, name) > 1]
    if isinstance(model, DecoderConfig) and model.mtp is not None and split:
        yield (
            "model.mtp",
            "tokens further ahead are predicted by a whole layer from whole texts: leave mtp out, "
            f"or use parallel.{split[0]} = 1",
        )


def _of_earlier_layers(
    model: ModelConfig, plan: ParallelTrainingConfig
) -> Iterator[tuple[str, str]]:
    """Problems of layers that read other processes' layers: the field, problem and remedy."""
    split = [name for name in ("context", "pipeline") if getattr(plan, name) > 1]
    for name, layers in model.stacks.items() if split else ():
        of_stack = "" if name == "stack" else f" of the {name}"
        for i, read in reads_of(layers).items():
            yield (
                "model.attention",
                f"layer {i}{of_stack} reads the keys or values of layer {read}, which other "
                f"processes have: use parallel.{split[0]} = 1",
            )
    if model.per_layer is not None and plan.pipeline > 1:
        yield (
            "model.embedding.per_layer",
            "layers read vectors of the embedding, which the first process has: use "
            "parallel.pipeline = 1",
        )


def _of_rows(
    model: ModelConfig, train: TrainConfig, plan: ParallelTrainingConfig
) -> Iterator[tuple[str, str]]:
    """Problems of splitting rows: the field, and the problem with its remedy."""
    size = getattr(train.batching, "batch_size", None)
    if isinstance(size, int) and size < plan.data:
        yield (
            "train.batching.batch_size",
            f"batches of {size} rows leave a process without one: give parallel.data = {size}, or "
            f"batch_size = {plan.data}",
        )
    yield from _of_batches(model, "rows", "parallel.data = 1")


def _of_batches(model: ModelConfig, split: str, remedy: str) -> Iterator[tuple[str, str]]:
    """Problems of parts that compute over all tokens of a batch: the field, problem and remedy."""
    for place, part in _placed_parts(model):
        if isinstance(part, BatchNormConfig):
            yield (
                "model.norm",
                f"batchnorm{place} would normalise by the {split} of each process and not of the "
                f"batch: use another norm, or {remedy}",
            )
        if isinstance(part, MixtureOfExpertsConfig) and part.capacity_factor:
            yield (
                "model.feedforward.capacity_factor",
                f"experts{place} would be full by the {split} of each process and not of the "
                f"batch: leave capacity_factor out, or use {remedy}",
            )


def _of_positions(model: ModelConfig, plan: ParallelTrainingConfig) -> Iterator[tuple[str, str]]:
    """Problems of splitting positions: the field, and the problem with its remedy."""
    rows = f"parallel.data = {plan.data * plan.context} and context = 1"
    for name, layer in named_layers(model):
        mixer = layer.attention
        if isinstance(mixer, WITHOUT_POSITIONS) and not isinstance(mixer, NoMixerConfig):
            yield (
                "model.attention",
                f"{kind_of(mixer)} of {name} reads earlier tokens, which other processes "
                f"have: use attention, or {rows}",
            )
    if model.convolution is not None:
        yield (
            "model.first_convolution",
            "the convolution at layer 0 reads neighbouring tokens, which other processes have: "
            f"leave first_convolution out, or use {rows}",
        )
    yield from _of_batches(model, "positions", "parallel.context = 1")


def named_layers(model: ModelConfig) -> Iterator[tuple[str, LayerParts]]:
    """Yield the parts of each layer with a name for messages."""
    for stack, layers in model.stacks.items():
        of_stack = "" if stack == "stack" else f" of the {stack}"
        for i, layer in enumerate(layers):
            yield f"layer {i}{of_stack}", layer


def _of_heads(model: ModelConfig, plan: ParallelTrainingConfig) -> Iterator[tuple[str, str]]:
    """Problems of splitting heads: the field, and the problem with the nearest valid number."""
    for place, part in _placed_parts(model):
        if isinstance(part, BatchNormConfig):
            yield (
                "model.norm",
                f"batchnorm{place} trains in one process: use another norm, or one process",
            )
    for heads, nearest in _undivided(model, plan.tensor):
        yield (
            heads.field,
            f"{heads} do not divide among {plan.tensor} processes: the nearest that does is "
            f"parallel.tensor = {nearest}",
        )


def check_heads(model: ModelConfig, processes: int) -> None:
    """Raise `InputError` if a model's heads cannot be divided among this many processes."""
    for heads, nearest in _undivided(model, processes):
        raise InputError(
            f"{heads} ({heads.field}) do not divide among {processes} processes: the nearest "
            f"number that does is `processes = {nearest}`"
        )


def check_layers(model: ModelConfig, processes: int) -> None:
    """Raise `InputError` if a model has fewer layers than there are processes."""
    n = sum(map(len, model.stacks.values()))
    if n < processes:
        raise InputError(
            f"each of {processes} processes needs a layer, and the model has {n}: the nearest "
            f"number is `processes = {max(1, n)}`"
        )


def _undivided(model: ModelConfig, n: int) -> Iterator[tuple["Heads", int]]:
    """Yield the heads that n processes cannot divide, and the nearest number that divides them."""
    heads = [*_heads_of(model)]
    fits = (m for m in range(n, 0, -1) if all(of_layer.divide(m) for of_layer in heads))
    nearest = next(fits)
    for of_layer in heads:
        if not of_layer.divide(n):
            yield of_layer, nearest


@dataclass(frozen=True)
class Heads:
    """The heads of a layer's attention; `together` of them must stay in one process."""

    field: str
    layer: str
    n_heads: int
    n_kv_heads: int
    together: int

    def divide(self, n: int) -> bool:
        """Whether n processes can share the heads evenly; a key head may be in several of them."""
        queries, keys = self.n_heads // self.together, self.n_kv_heads // self.together
        return queries % n == 0 and (keys % n == 0 or n % keys == 0)

    def __str__(self) -> str:
        pairs = ", in pairs," if self.together > 1 else ""
        keys = f" and n_kv_heads = {self.n_kv_heads}" if self.n_kv_heads != self.n_heads else ""
        return f"n_heads = {self.n_heads}{keys}{pairs} of {self.layer}"


def _heads_of(model: ModelConfig) -> Iterator[Heads]:
    """Yield the heads of self- and cross-attention in each layer."""
    for name, layer in named_layers(model):
        attentions = {"attention": layer.attention}
        if name.endswith("decoder"):
            attentions["cross_attention"] = layer.cross_attention
        for field, part in attentions.items():
            if isinstance(part, AttentionConfig | LatentAttentionConfig):
                heads = part.heads(model.d_model)
                pairs = isinstance(getattr(part, "core", None), DifferentialCoreConfig)
                yield Heads(
                    f"model.{field}", name, heads.n_heads, heads.n_kv_heads, 2 if pairs else 1
                )


def _of_layers(model: ModelConfig, plan: ParallelTrainingConfig) -> Iterator[tuple[str, str]]:
    """Problems of splitting layers: the field, and the problem with its remedy."""
    n = sum(map(len, model.stacks.values()))
    if plan.stages > n:
        each = plan.stages // plan.pipeline
        two = ", two groups of them in each process with schedule = 'interleaved'"
        nearest = f"parallel.pipeline = {max(1, n // each)}"
        simpler = f", or pipeline = {min(n, plan.pipeline)} with schedule = '1f1b'"
        yield (
            "parallel.pipeline",
            f"{plan.stages} groups of layers{two if each > 1 else ''}: the model has {n}: give "
            f"{nearest}{simpler if each > 1 else ''}",
        )
    for place, part in _placed_parts(model):
        if isinstance(part, BatchNormConfig):
            yield (
                "model.norm",
                f"batchnorm{place} would keep other running statistics in each process: use "
                "another norm, or parallel.pipeline = 1",
            )
    if not isinstance(model, EncoderDecoderConfig) and model.exits:
        yield (
            "model.exits",
            "the loss of an early exit is computed in the last process, which has no layer of one "
            "before: leave exits out, or use parallel.pipeline = 1",
        )


def _of_weights(train: TrainConfig) -> Iterator[tuple[str, str]]:
    """Problems of splitting optimiser states: the field, and the problem with its remedy."""
    if not isinstance(train.optimizer, SPLIT):
        yield (
            "train.optimizer",
            f"the states of {kind_of(train.optimizer)} are not split: use "
            f"{', '.join(map(kind_of, SPLIT))}, or parallel.shard = false, tensor = 1 and "
            "pipeline = 1",
        )
    if train.adapter is not None:
        yield (
            "train.adapter",
            "an adapter is too small to split: use parallel.shard = false, tensor = 1 and "
            "pipeline = 1",
        )


def _of_shards(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Problems of splitting weights: the field, and the problem with its remedy."""
    for place, part in _placed_parts(model):
        if isinstance(part, ScaleNormConfig | DynamicTanhConfig | DynamicErfConfig):
            yield (
                "model.norm",
                f"{kind_of(part)}{place} learns single numbers, which have no parts: use another "
                "norm, or parallel.shard = false",
            )


def _placed_parts(model: ModelConfig) -> Iterator[tuple[str, Any]]:
    """Yield each part of the layers with a place for messages, then those of the whole model."""
    for name, layer in named_layers(model):
        for part in parts_of(layer):
            yield f" of {name}", part
    for part in parts_of(model):
        yield "", part


def parts_of(config: Any) -> Iterator[Any]:
    """Yield every configuration nested in a configuration, itself first."""
    if isinstance(config, tuple):
        for entry in config:
            yield from parts_of(entry)
    elif is_dataclass(config):
        yield config
        for field in fields(config):
            yield from parts_of(getattr(config, field.name))
