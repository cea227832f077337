"""Predicting the peak memory of training: steps on tensors without values, nothing trained."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)

from addnorm.data.batching import Batch, Buckets, Loader
from addnorm.memory import (
    keep_freed_pages,
    peak_resident_memory,
    replayed_growth,
    resident_memory,
    total_memory,
)
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.choices import choices
from addnorm.runs.training import Prepared
from addnorm.train.activation_checkpointing import checkpointed_activations
from addnorm.train.allocations import Allocations
from addnorm.train.loss import CrossEntropyConfig
from addnorm.train.precision import resolve_device
from addnorm.train.settings import TrainConfig
from addnorm.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The bytes that training takes at its peak, by what takes them."""

    device: torch.device
    process: int
    """Python, libraries and data; 0 on a GPU, where they are not."""
    weights: int
    optimizer: int
    """The states of the optimiser."""
    average: int
    """The moving average of the weights."""
    activations: int
    """Gradients, what the backward pass needs, and temporary results."""
    gaps: int
    """What lies free between tensors and is too small for the next; 0 on a GPU."""
    before: int
    """The most that the process took before training, while it read the data."""

    @property
    def total(self) -> int:
        """All parts together, or what was taken before if that was more."""
        kept = self.weights + self.optimizer + self.average
        return max(self.process + kept + self.activations + self.gaps, self.before)

    @property
    def available(self) -> int | None:
        """The memory of the machine or of the GPU; None if unknown."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return total_memory()


@dataclass(frozen=True, kw_only=True)
class _Traced:
    """What steps allocated: the parts that stay, the peak, and each event."""

    weights: int
    optimizer: int
    average: int
    peak: int
    events: list[tuple[int, int]]


def predict_peak_memory(prepared: Prepared) -> PeakMemory:
    """Predict the peak memory of training: of the process on a CPU, or of the tensors on a GPU.

    The largest batches go through the model, the loss, the backward pass and the optimiser as
    tensors without values, while each allocation is recorded. On a CPU the C library then repeats
    these allocations, in memory that is never touched, to see which gaps remain between them; what
    libraries take is measured on a tiny model. Where a model reads values, to choose a shape or a
    path, as a mixture of experts does, the steps are made with values, and change the weights of
    `prepared.model`. A compiler's own memory, validation and saving are not counted.
    """
    config = prepared.recipe.train
    device = resolve_device(config.device)
    before = peak_resident_memory() or 0
    if on_cpu := device.type == "cpu":
        if choices().keep_pages:
            keep_freed_pages()
        _step_of_tiny_model(config, prepared.loaders.train)
    base = resident_memory() or before
    batches = largest_batches(prepared.loaders.train)
    try:
        traced = _without_values(prepared, batches, device)
        grown = replayed_growth(traced.events) if on_cpu else None
    except (DataDependentOutputException, DynamicOutputShapeException):
        traced = _trace(prepared.model, prepared, batches, lambda tensor: tensor)
        grown = (resident_memory() or base) - base if on_cpu else None
    kept = traced.weights + traced.optimizer + traced.average
    growth = traced.peak - traced.weights
    return PeakMemory(
        device=device,
        process=max(base - traced.weights, 0) if on_cpu else 0,
        weights=traced.weights,
        optimizer=traced.optimizer,
        average=traced.average,
        activations=traced.peak - kept,
        gaps=max((grown or 0) - growth, 0),
        before=before if on_cpu else 0,
    )


def largest_batches(loader: Loader[Any]) -> list[Batch]:
    """The batches of an epoch that may need most: by positions, and by their square as scores do.

    The first batch follows them, whose other shape leaves other gaps. Only `Buckets` have batches
    of several shapes; of other loaders it is the first batch alone.
    """
    if not isinstance(loader, Buckets):
        return [next(loader.batches())]
    plan = loader.plan(0)
    widths = [max(loader.widths[i] for i in items) for items in plan]
    by_positions = max(range(len(plan)), key=lambda n: len(plan[n]) * widths[n])
    by_scores = max(range(len(plan)), key=lambda n: len(plan[n]) * widths[n] ** 2)
    return [loader.build(plan[n]) for n in dict.fromkeys((by_positions, by_scores, 0))]


def _without_values(prepared: Prepared, batches: Sequence[Batch], device: torch.device) -> _Traced:
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        model = copy.deepcopy(prepared.model)
    with mode:
        _move(model, device)
        # Tensors without values cannot be moved in place, which `to` does.
        vars(model)["to"] = lambda _: model  # pyright: ignore[reportUnknownLambdaType]
        return _trace(model, prepared, batches, mode.from_tensor)


def _move(model: nn.Module, device: torch.device) -> None:
    """Replace every tensor of a model by an empty one on a device; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.device != device:
                    there = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, nn.Parameter):
                        there = nn.Parameter(there, requires_grad=tensor.requires_grad)
                    held[name] = moved.setdefault(id(tensor), there)


def _trace(
    model: nn.Module,
    prepared: Prepared,
    batches: Sequence[Batch],
    as_tensor: Callable[[Tensor], Tensor],
) -> _Traced:
    """Make a step of each batch, twice, and record what is allocated; nothing is written."""
    config = _plain(prepared.recipe.train)
    blocks = checkpointed_activations(model, config.activation_checkpointing)
    allocations = Allocations()
    with TemporaryDirectory() as folder, blocks:
        allocations.add(model.state_dict(keep_vars=True).values())
        weights = allocations.live
        allocations.events.clear()
        with allocations:
            trainer = Trainer(model, prepared.loaders.train, config, Path(folder))
            average = allocations.live - weights
            states: list[Tensor] = []  # of the optimisers that are not run here
            for batch in [*batches, *batches]:
                _update(trainer, _mapped(batch, as_tensor), states)
            return _Traced(
                weights=weights,
                optimizer=allocations.live - weights - average,
                average=average,
                peak=allocations.peak,
                events=list(allocations.events),
            )


def _mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    inputs = {name: change(tensor) for name, tensor in batch.inputs.items()}
    return replace(batch, inputs=inputs, targets=change(batch.targets))


def _update(trainer: Trainer, batch: Batch, states: list[Tensor]) -> None:
    """What `Trainer.update` allocates for this batch, without a look at the loss."""
    trainer.model.train()
    for _ in range(min(trainer.config.accumulate, 2)):  # the second finds gradients of the first
        trainer.backward(batch.to(trainer.device), batch.n_tokens)
    for optimizer in trainer.optimizers:
        if type(optimizer).__name__ != "AdamW8bit":
            optimizer.step()
        elif not states:  # its compiled step allocates nothing but these
            states += _states_of_8_bits(optimizer)
        optimizer.zero_grad(set_to_none=True)
    if trainer.average is not None:
        trainer.average.update(trainer.model)


def _states_of_8_bits(optimizer: Any) -> list[Tensor]:
    """Empty tensors of the sizes of both moments, by torchao's rule on what gets 8 bits."""
    found = list[Tensor]()
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        n, block = parameter.numel(), optimizer.block_size
        if n >= 4096 and n % block == 0:
            codes = [torch.empty(n, dtype=torch.uint8, device=parameter.device) for _ in range(2)]
            sizes = (n // block, 256) * 2  # scales, and the value of each code
            found += [*codes, *(torch.empty(size, device=parameter.device) for size in sizes)]
        else:
            found += [torch.empty_like(parameter) for _ in range(2)]
    return found


def _step_of_tiny_model(config: TrainConfig, loader: Loader[Any]) -> None:
    """Let the libraries take what they take at a first step; nothing of it is kept."""
    attention = AttentionConfig(n_heads=2)
    model = DecoderConfig(d_model=64, n_layers=1, attention=attention).build(8)
    tokens = torch.ones(2, 8, dtype=torch.long)
    batch = Batch.of({"tokens": tokens}, tokens, [0, 1])
    plain = replace(_plain(config), loss=CrossEntropyConfig())
    with TemporaryDirectory() as folder:
        Trainer(model, loader, plain, Path(folder)).update([batch])


def _plain(config: TrainConfig) -> TrainConfig:
    """Without what needs a compiler, validation data or a place to write to."""
    return replace(config, compile=False, select="last", patience=None, tensorboard=False)
