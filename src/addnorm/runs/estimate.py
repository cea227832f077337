"""What a recipe will cost: a few steps are taken for it, in a folder that is thrown away."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from addnorm.runs.recipe import Recipe
from addnorm.runs.training import Prepared, count
from addnorm.train.average import weights_of
from addnorm.train.optim import optimizer_tensors
from addnorm.train.trainer import Trainer

SECONDS = 10.0
"""After so long no further step is timed."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Sizes exactly; memory and time as measured on `device` over `timed` steps."""

    parameters: int
    steps: int
    steps_per_epoch: int
    tokens_per_step: float
    state_bytes: int
    """Weights, gradients, moving average and the optimiser's state."""
    peak_bytes: int | None
    """Of the whole process on a CPU, of the GPU otherwise; None where it cannot be known."""
    seconds_per_step: float
    device: torch.device
    timed: int

    @property
    def seconds(self) -> float:
        """Of all steps, validation and saving left out."""
        return self.steps * self.seconds_per_step


def estimate(prepared: Prepared, n_timed: int = 8) -> Estimate:
    """Take one step to warm up and `n_timed` to measure, as training would; keep nothing.

    `prepared.model` has moved on afterwards.
    """
    recipe = prepared.recipe
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            prepared.model,
            prepared.loaders.train,
            recipe.train,
            Path(folder),
            validation=prepared.validation(),
        )
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
    weights = weights_of(prepared.model)
    return Estimate(
        parameters=count(prepared.model),
        steps=trainer.total_steps,
        steps_per_epoch=steps_per_epoch(recipe, len(prepared.loaders.train)),
        tokens_per_step=tokens / timed,
        state_bytes=2 * size(weights) + size(average) + size(optimizer_tensors(trainer.optimizers)),
        peak_bytes=peak(trainer.device),
        seconds_per_step=seconds / timed,
        device=trainer.device,
        timed=timed,
    )


def steps_per_epoch(recipe: Recipe, n_batches: int) -> int:
    """Updates in an epoch; the last may take fewer batches than `accumulate`."""
    return -(-n_batches // recipe.train.accumulate)


def size(tensors: dict[str, Tensor]) -> int:
    """The bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def peak(device: torch.device) -> int | None:
    """The most memory held so far: on the GPU, or by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
