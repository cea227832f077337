"""The cost of training a recipe: peak memory, sizes and time per step."""

import copy
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from addnorm.data.batches.buckets import Batch, Buckets, Images, Loader
from addnorm.data.batches.frames import Frames
from addnorm.machine import peak_resident_memory, resident_memory, total_memory
from addnorm.models.weights import n_bytes, weights_of
from addnorm.nn.choices import choices
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.train_run import TrainingSetup, checked_trainer, count
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.optim import optimizer_tensors
from addnorm.training.precision import resolve_device
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer, Validation


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The bytes in use at the peak of training, by use."""

    device: torch.device
    process: int
    """Python, libraries and data; 0 on a GPU, where they are not."""
    weights: int
    optimizer: int
    """The states of the optimiser."""
    average: int
    """The moving average of the weights."""
    activations: int
    """Gradients, saved activations and temporary results."""
    other: int
    """Work space of libraries, and fragmentation."""
    before: int
    """The peak of the process before training, while it read the data."""

    @property
    def total(self) -> int:
        """The sum of all parts, or the peak before training if that was more."""
        staying = self.weights + self.optimizer + self.average
        return max(self.process + staying + self.activations + self.other, self.before)

    @property
    def available(self) -> int | None:
        """The memory of the machine or of the GPU; None if unknown."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        return total_memory()

    def exceeds(self) -> bool:
        """Whether the peak is more than the available memory."""
        return self.available is not None and self.total > self.available


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The bytes allocated by steps: those that stay, and the peak."""

    weights: int
    optimizer: int
    average: int
    peak: int


def predict_peak_memory(setup: TrainingSetup) -> PeakMemory:
    """Predict the peak memory of training: of the process on a CPU, or of the tensors on a GPU.

    The largest batches go through the model, the loss, the backward pass and the optimiser as
    tensors without values, while each allocation is counted: this takes no memory. If they fit into
    the machine, steps are made with them, for what cannot be counted: what libraries take, and gaps
    between tensors. They change the weights of `setup.model`. Where a model reads values, to
    choose a shape or a path, as a mixture of experts does, the count has them too. Validation and
    saving are not counted.
    """
    device = resolve_device(setup.recipe.train.device)
    before, base = peak_resident_memory() or 0, resident_memory() or 0
    choices()  # measured now, if ever
    batches = largest_batches(setup.loaders.train)
    try:
        counted = _without_values(setup, batches, device)
    except (DataDependentOutputException, DynamicOutputShapeException):
        counted = _count(setup.model, setup, batches, lambda tensor: tensor)
    staying = counted.weights + counted.optimizer + counted.average
    on_cpu = device.type == "cpu"
    predicted = PeakMemory(
        device=device,
        process=max(base - counted.weights, 0) if on_cpu else 0,
        weights=counted.weights,
        optimizer=counted.optimizer,
        average=counted.average,
        activations=counted.peak - staying,
        other=0,
        before=before if on_cpu else 0,
    )
    if predicted.exceeds():
        return predicted
    _make_steps(setup, batches)
    if on_cpu:
        most = peak_resident_memory() or 0
        taken = most if most > before else resident_memory() or 0
    else:
        taken = torch.cuda.max_memory_allocated(device)
    return replace(predicted, other=max(taken - predicted.process - counted.peak, 0))


def _make_steps(setup: TrainingSetup, batches: Sequence[Batch]) -> None:
    """Make two steps with each batch."""
    config = setup.recipe.train
    with _trial(setup, replace(setup.recipe, train=_plain(config))) as trainer:
        for batch in [*batches, *batches]:
            trainer.update([batch] * config.accumulate)


@contextmanager
def _trial(
    setup: TrainingSetup, recipe: Recipe, validation: Validation | None = None
) -> Generator[Trainer]:
    """Yield a trainer of the model whose files are removed afterwards."""
    blocks = checkpointed_activations(setup.model, recipe.train.activation_checkpointing)
    batches, teacher = setup.loaders.train, setup.teacher
    with (
        TemporaryDirectory() as folder,
        blocks,
        checked_trainer(
            recipe, setup.model, batches, Path(folder), teacher=teacher, validation=validation
        ) as trainer,
    ):
        yield trainer


def largest_batches(loader: Loader[Any]) -> list[Batch]:
    """Return the batches of an epoch that may need the most memory, by length and its square.

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
    """Return a function from an item to its width; None if all batches have one shape."""
    match loader:
        case Buckets(widths=widths):
            return lambda i: int(widths[i])
        case Frames(lengths=lengths):
            return lambda masked: lengths[masked[0]]
        case Images(sizes=sizes):
            return lambda drawn: prod(sizes[drawn.example])
        case _:
            return None


def _without_values(
    setup: TrainingSetup, batches: Sequence[Batch], device: torch.device
) -> _Counted:
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        model = copy.deepcopy(setup.model)
    with mode:
        _move(model, device)
        # Tensors without values cannot be moved in place, which `to` does.
        vars(model)["to"] = lambda _: model  # pyright: ignore[reportUnknownLambdaType]
        return _count(model, setup, batches, mode.from_tensor)


def _move(model: nn.Module, device: torch.device) -> None:
    """Replace every tensor of a model by an empty one on another device; tied ones stay tied."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in tensors.items():
                if tensor is not None and tensor.device != device:
                    empty = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, nn.Parameter):
                        empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
                    tensors[name] = moved.setdefault(id(tensor), empty)


def _count(
    model: nn.Module,
    setup: TrainingSetup,
    batches: Sequence[Batch],
    as_tensor: Callable[[Tensor], Tensor],
) -> _Counted:
    """Make two steps with each batch, and count the allocated bytes."""
    # A teacher is not counted: the steps that are made measure what it takes.
    config = replace(_plain(setup.recipe.train), compile=False, distillation=None)
    blocks = checkpointed_activations(model, config.activation_checkpointing)
    allocations = Allocations()
    with TemporaryDirectory() as folder, blocks:
        allocations.add(model.state_dict(keep_vars=True).values())
        weights = allocations.live
        with allocations:
            trainer = Trainer(model, setup.loaders.train, config, Path(folder))
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
    """Allocate as `Trainer.update` does for this batch, without reading the loss."""
    trainer.model.train()
    for _ in range(min(trainer.config.accumulate, 2)):  # the second finds gradients of the first
        trainer.backward([batch.to(trainer.device)], batch.n_tokens)
    for optimizer in trainer.optimizers:
        if type(optimizer).__name__ != "AdamW8bit":
            optimizer.step()
        elif not states:  # its compiled step allocates nothing but these
            states += _states_of_8_bits(optimizer)
        optimizer.zero_grad(set_to_none=True)
    if trainer.average is not None:
        trainer.average.update(trainer.model)


def _states_of_8_bits(optimizer: Any) -> list[Tensor]:
    """Return empty tensors as large as both moments in 8 bits, by torchao's rule."""
    states = list[Tensor]()
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        n, block = parameter.numel(), optimizer.block_size
        if n >= 4096 and n % block == 0:
            codes = [torch.empty(n, dtype=torch.uint8, device=parameter.device) for _ in range(2)]
            sizes = (n // block, 256) * 2  # scales, and the value of each code
            states += [*codes, *(torch.empty(size, device=parameter.device) for size in sizes)]
        else:
            states += [torch.empty_like(parameter) for _ in range(2)]
    return states


def _plain(config: TrainConfig) -> TrainConfig:
    """Return the settings without those that need validation data or loggers."""
    return replace(config, select="last", patience=None, tensorboard=False, logger=())


SECONDS = 10.0
"""The maximum total time of the measured steps."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Exact sizes, and the memory and time measured on `device` over `timed` steps."""

    parameters: int
    steps: int
    steps_per_epoch: int
    tokens_per_step: float
    state_bytes: int
    """Weights, gradients, moving average and the optimiser's state."""
    peak_bytes: int | None
    """Peak memory of the process on a CPU, or of the GPU; None if unknown."""
    seconds_per_step: float
    device: torch.device
    timed: int

    @property
    def seconds(self) -> float:
        """The time for all steps, without validation and saving."""
        return self.steps * self.seconds_per_step


def estimate(setup: TrainingSetup, n_timed: int = 8) -> Estimate:
    """Run one warm-up step and `n_timed` measured training steps, and discard the results.

    This changes the weights of `setup.model`.
    """
    recipe = setup.recipe
    with _trial(setup, recipe, setup.validation()) as trainer:
        trainer.update(trainer.next_group())
        seconds, tokens = 0.0, 0
        timed = 0
        while timed < n_timed and seconds < SECONDS:
            start = time.perf_counter()
            group = trainer.next_group()
            trainer.update(group)
            seconds += time.perf_counter() - start
            tokens += sum(batch.n_tokens for batch in group)
            timed += 1
    average = {} if trainer.average is None else trainer.average.weights
    weights = weights_of(setup.model)
    return Estimate(
        parameters=count(setup.model),
        steps=trainer.total_steps,
        steps_per_epoch=recipe.train.steps_per_epoch(len(setup.loaders.train)),
        tokens_per_step=tokens / timed,
        state_bytes=2 * n_bytes(weights.values())
        + n_bytes(average.values())
        + n_bytes(optimizer_tensors(trainer.optimizers, lambda tensor, _: tensor).values()),
        peak_bytes=peak_memory(trainer.device),
        seconds_per_step=seconds / timed,
        device=trainer.device,
        timed=timed,
    )


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory so far of the GPU, or of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_memory()


class Allocations(TorchDispatchMode):
    """A context that counts the bytes of every storage from its creation until it is freed.

    `live` is the number of bytes now, `peak` the most so far. `add` counts tensors that existed
    before. Memory that a kernel allocates and frees before it returns is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors, each once, until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage._cdata  # pyright: ignore[reportPrivateUsage]
            if address not in self._sizes:
                self._begin(address, storage)

    def _begin(self, address: int, storage: UntypedStorage) -> None:
        self._sizes[address] = storage.nbytes()
        self.live += self._sizes[address]
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._end, address).atexit = False

    def _end(self, address: int) -> None:
        self.live -= self._sizes.pop(address)
