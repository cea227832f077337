"""Estimating the cost of a recipe by running a few training steps in a temporary folder."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from addnorm.runs.train.checked_trainer import checked_trainer
from addnorm.runs.train.train_run import Prepared, count
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.average import n_bytes, weights_of
from addnorm.training.optim import optimizer_tensors

SECONDS = 10.0
"""The maximum total time of the measured steps."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Exact sizes, and memory and time measured on `device` over `timed` steps."""

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


def estimate(prepared: Prepared, n_timed: int = 8) -> Estimate:
    """Run one warm-up step and `n_timed` measured training steps, and discard the results.

    This changes the weights of `prepared.model`.
    """
    recipe = prepared.recipe
    blocks = checkpointed_activations(prepared.model, recipe.train.activation_checkpointing)
    with (
        TemporaryDirectory() as folder,
        blocks,
        checked_trainer(
            recipe,
            prepared.model,
            prepared.loaders.train,
            Path(folder),
            teacher=prepared.teacher,
            validation=prepared.validation(),
        ) as trainer,
    ):
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
        steps_per_epoch=recipe.train.steps_per_epoch(len(prepared.loaders.train)),
        tokens_per_step=tokens / timed,
        state_bytes=2 * n_bytes(weights.values())
        + n_bytes(average.values())
        + n_bytes(optimizer_tensors(trainer.optimizers).values()),
        peak_bytes=peak(trainer.device),
        seconds_per_step=seconds / timed,
        device=trainer.device,
        timed=timed,
    )


def peak(device: torch.device) -> int | None:
    """The peak memory so far, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
