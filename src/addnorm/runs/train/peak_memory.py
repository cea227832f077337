"""The peak memory of training: from steps on tensors without values, then from a few true ones."""

import copy
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from math import prod
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

from addnorm.data.batches.buckets import Batch, Buckets, Images, Loader
from addnorm.data.batches.frames import Frames
from addnorm.memory import (
    peak_resident_memory,
    resident_memory,
    total_memory,
)
from addnorm.nn.choices import choices
from addnorm.runs.train.checked_trainer import checked_trainer
from addnorm.runs.train.train_run import Prepared
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.allocations import Allocations
from addnorm.training.average import n_bytes
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer


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
    other: int
    """Work space of libraries, and gaps between tensors that are too small for the next one."""
    before: int
    """The most that the process took before training, while it read the data."""

    @property
    def total(self) -> int:
        """All parts together, or what was taken before if that was more."""
        kept = self.weights + self.optimizer + self.average
        return max(self.process + kept + self.activations + self.other, self.before)

    @property
    def available(self) -> int | None:
        """The memory of the machine or of the GPU; None if unknown."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return total_memory()

    def exceeds(self) -> bool:
        """Whether there is less memory than this."""
        return self.available is not None and self.total > self.available


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The bytes that steps allocated: the parts that stay, and the peak."""

    weights: int
    optimizer: int
    average: int
    peak: int


def predict_peak_memory(prepared: Prepared) -> PeakMemory:
    """Predict the peak memory of training: of the process on a CPU, or of the tensors on a GPU.

    The largest batches go through the model, the loss, the backward pass and the optimiser as
    tensors without values, while each allocation is counted: this takes no memory. If they fit into
    the machine, steps are made with them, for what cannot be counted: what libraries take, and gaps
    between tensors. They change the weights of `prepared.model`. Where a model reads values, to
    choose a shape or a path, as a mixture of experts does, the count has them too. Validation and
    saving are not counted.
    """
    device = resolve_device(prepared.recipe.train.device)
    before, base = peak_resident_memory() or 0, resident_memory() or 0
    choices()  # measured now, if ever
    batches = largest_batches(prepared.loaders.train)
    try:
        counted = _without_values(prepared, batches, device)
    except (DataDependentOutputException, DynamicOutputShapeException):
        counted = _count(prepared.model, prepared, batches, lambda tensor: tensor)
    kept = counted.weights + counted.optimizer + counted.average
    on_cpu = device.type == "cpu"
    found = PeakMemory(
        device=device,
        process=max(base - counted.weights, 0) if on_cpu else 0,
        weights=counted.weights,
        optimizer=counted.optimizer,
        average=counted.average,
        activations=counted.peak - kept,
        other=0,
        before=before if on_cpu else 0,
    )
    if found.exceeds():
        return found
    _make_steps(prepared, batches)
    if on_cpu:
        most = peak_resident_memory() or 0
        taken = most if most > before else resident_memory() or 0
    else:
        taken = torch.cuda.max_memory_allocated(device)
    return replace(found, other=max(taken - found.process - counted.peak, 0))


def _make_steps(prepared: Prepared, batches: Sequence[Batch]) -> None:
    """Make two steps with each batch."""
    config = prepared.recipe.train
    blocks = checkpointed_activations(prepared.model, config.activation_checkpointing)
    recipe = replace(prepared.recipe, train=_plain(config))
    teacher = prepared.teacher
    with (
        TemporaryDirectory() as folder,
        blocks,
        checked_trainer(
            recipe, prepared.model, prepared.loaders.train, Path(folder), teacher=teacher
        ) as trainer,
    ):
        for batch in [*batches, *batches]:
            trainer.update([batch] * config.accumulate)


def largest_batches(loader: Loader[Any]) -> list[Batch]:
    """The batches of an epoch that may need most: by positions, and by their square as scores do.

    The first batch follows them, whose other shape leaves other gaps. `Buckets`, `Images` and
    `Frames` have batches of several shapes; of other loaders it is the first batch alone.
    """
    width = _width_of(loader)
    if width is None:
        return [next(loader.batches())]
    plan = loader.plan(0)
    widths = [max(map(width, items)) for items in plan]
    by_positions = max(range(len(plan)), key=lambda n: len(plan[n]) * widths[n])
    by_scores = max(range(len(plan)), key=lambda n: len(plan[n]) * widths[n] ** 2)
    return [loader.build(plan[n]) for n in dict.fromkeys((by_positions, by_scores, 0))]


def _width_of(loader: Loader[Any]) -> Callable[[Any], int] | None:
    """How wide an item makes its batch; None where all batches have one shape."""
    match loader:
        case Buckets(widths=widths):
            return lambda i: widths[i]
        case Frames(lengths=lengths):
            return lambda masked: lengths[masked[0]]
        case Images(sizes=sizes):
            return lambda drawn: prod(sizes[drawn.example])
        case _:
            return None


def _without_values(prepared: Prepared, batches: Sequence[Batch], device: torch.device) -> _Counted:
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        model = copy.deepcopy(prepared.model)
    with mode:
        _move(model, device)
        # Tensors without values cannot be moved in place, which `to` does.
        vars(model)["to"] = lambda _: model  # pyright: ignore[reportUnknownLambdaType]
        return _count(model, prepared, batches, mode.from_tensor)


def _move(model: nn.Module, device: torch.device) -> None:
    """Replace every tensor of a model by an empty one on a device; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in held.items():
                if tensor is not None and tensor.device != device:
                    there = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, nn.Parameter):
                        there = nn.Parameter(there, requires_grad=tensor.requires_grad)
                    held[name] = moved.setdefault(id(tensor), there)


def _count(
    model: nn.Module,
    prepared: Prepared,
    batches: Sequence[Batch],
    as_tensor: Callable[[Tensor], Tensor],
) -> _Counted:
    """Make a step of each batch, twice, and count what is allocated."""
    # A teacher is not counted: the steps that are made measure what it takes.
    config = replace(_plain(prepared.recipe.train), compile=False, distillation=None)
    blocks = checkpointed_activations(model, config.activation_checkpointing)
    allocations = Allocations()
    with TemporaryDirectory() as folder, blocks:
        allocations.add(model.state_dict(keep_vars=True).values())
        weights = allocations.live
        with allocations:
            trainer = Trainer(model, prepared.loaders.train, config, Path(folder))
            average = allocations.live - weights
            states: list[Tensor] = []  # of the optimisers that are not run here
            for batch in [*batches, *batches]:
                _update(trainer, _mapped(batch, as_tensor), states)
            return _Counted(
                weights=weights,
                optimizer=n_bytes([*_states(trainer.optimizers), *states]),
                average=average,
                peak=allocations.peak,
            )


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> Generator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (entry for entry in state.values() if isinstance(entry, Tensor))


def _mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    inputs = {name: change(tensor) for name, tensor in batch.inputs.items()}
    soft = None if batch.soft_targets is None else change(batch.soft_targets)
    return replace(batch, inputs=inputs, targets=change(batch.targets), soft_targets=soft)


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


def _plain(config: TrainConfig) -> TrainConfig:
    """Without what needs validation data, or TensorBoard."""
    return replace(config, select="last", patience=None, tensorboard=False)
