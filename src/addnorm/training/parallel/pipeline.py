"""Pipeline parallelism: micro-batches pass through stages, by the schedules of `torch.distributed`.

GPipe (Huang et al. 2019, §2.3) computes all forward passes first, 1F1B (Narayanan et al. 2019,
§3.2) a backward pass as soon as it can; with interleaved stages (Narayanan et al. 2021, §2.2) each
process has two stages, so that others wait for less time.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from addnorm.data.batches.batch import Batch
from addnorm.nn.functional import once_differentiable
from addnorm.training.objective import LossFunction
from addnorm.training.parallel.draws import Draws
from addnorm.training.parallel.pieces import ConnectedGroup, Group
from addnorm.training.parallel.plan import Schedule
from addnorm.training.parallel.stages import StagedModel


@dataclass
class Step:
    """The micro-batches of an optimiser's step, and their losses."""

    batches: Sequence[Batch]
    loss_of: Callable[[Batch], Tensor]
    """This process's share of the loss of a micro-batch."""
    scale: Callable[[Tensor], Tensor]
    """Scales a loss before its gradient."""
    remembered: Callable[[], Callable[[Tensor], None]]
    """Called after a forward pass: what to call before its backward pass."""
    states: Sequence[Mapping[int, Tensor]] = ()
    """The state of the random generator where each stage begins with each micro-batch."""
    losses: list[Tensor] = field(default_factory=list[Tensor])
    """The share of this process of each micro-batch."""
    broken: bool = False
    """Whether a stage of this process made values that are not finite of finite ones."""


class Pipeline:
    """The stages of a model that this process computes, and their schedules.

    What a stage hands on is a vector of one length, the longest so far, so that micro-batches may
    have any shapes. There is a schedule for each number of micro-batches.
    """

    def __init__(
        self,
        model: StagedModel,
        group: Group,
        schedule: Schedule,
        draws: Draws | None = None,
    ) -> None:
        logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
        self.model = model
        self.group = group
        self.schedule = schedule
        self.draws = draws
        self.length = 0
        self.dtype = next(model.model.parameters()).dtype
        self._schedules: dict[int, Any] = {}
        self._first = 0
        self._step: Step | None = None

    @property
    def broken(self) -> bool:
        """Whether this process turned finite values into NaN or infinity in the last step."""
        return self._step is not None and self._step.broken

    def objective(self, objective: LossFunction) -> LossFunction:
        """The objective in the last stage; other stages compute their layers and return zero."""

        def staged(
            model: Any, inputs: dict[str, Tensor], targets: Tensor, soft: Tensor | None = None
        ) -> Tensor:
            if self.model.is_last:
                return objective(model, inputs, targets, soft)
            x, _ = model.hidden(**inputs)
            return x.new_zeros(())

        return staged

    def differentiate(self, step: Step, length: int) -> None:
        """Accumulate the gradients of micro-batches; stages exchange at most `length` values."""
        if length > self.length:
            self.length = length
            self._schedules.clear()
        self._step = step
        step.losses = [torch.zeros((), dtype=self.dtype) for _ in step.batches]
        self._first = 0
        after = torch.get_rng_state()
        for n in self.parts(len(step.batches)):
            self._run(n)
            self._first += n
        torch.set_rng_state(after)

    def parts(self, n: int) -> list[int]:
        """The sizes of the groups of micro-batches that pass through the stages together.

        Interleaved stages take a multiple of the number of processes, or fewer than these.
        """
        rest = n % self.group.size
        if self.schedule != "interleaved" or rest in (0, n):
            return [n]
        return [n - rest, rest]

    def _run(self, n: int) -> None:
        if n not in self._schedules:
            self._schedules[n] = self._built(n)
        schedule, numbers = self._schedules[n], torch.arange(n)
        own = self.model.own
        arguments = [torch.zeros(n, dtype=self.dtype)] if 0 in own else []
        target = torch.zeros(n) if self.model.stages.total - 1 in own else None
        try:
            schedule.step(*arguments, target=target, return_outputs=False, micro_batch=numbers)
        except RuntimeError as error:  # which hides what a pass has raised
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None
            raise

    def _built(self, n: int) -> Any:
        """Build the schedule for `n` micro-batches."""
        assert isinstance(self.group, ConnectedGroup)
        total = self.model.stages.total
        vector = torch.empty(self.length, dtype=self.dtype, requires_grad=True)
        stages: list[Any] = [
            PipelineStage(
                _Stage(partial(self._forward, stage)),
                stage,
                total,
                torch.device("cpu"),
                input_args=vector if stage else torch.empty(1),
                output_args=vector if stage < total - 1 else torch.empty((), requires_grad=True),
                group=self.group.handle,
            )
            for stage in self.model.own
        ]
        settings: dict[str, Any] = {"loss_fn": lambda loss, _: loss, "scale_grads": False}
        if self.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, n, **settings)
        # With fewer micro-batches than stages both are the same, and torch's 1F1B refuses them.
        kind = Schedule1F1B if self.schedule == "1f1b" and n >= total else ScheduleGPipe
        return kind(stages[0], n, **settings)

    def _forward(self, stage: int, received: Tensor, micro_batch: int) -> Tensor:
        """The values that a stage sends to the next, or in the last stage the loss."""
        step = self._step
        assert step is not None
        number = self._first + micro_batch
        if step.states:
            torch.set_rng_state(step.states[number][stage])
        with self.model.at(stage, received):
            loss = step.loss_of(step.batches[number])
            step.losses[number] = step.losses[number] + loss.detach()
            scaled = step.scale(loss)
            output = scaled
            if not self.model.is_last:
                output = self.model.handed_on(self.length, self.dtype)
                output = with_loss(output, scaled) if scaled.requires_grad else output
        sound = not stage or finite(received)
        step.broken |= sound and not (finite(output) and finite(loss))
        if output.requires_grad:
            output.register_hook(step.remembered())
        return output


def finite(x: Tensor) -> bool:
    """Whether all values are finite; also false if their sum overflows."""
    return bool(x.detach().sum().isfinite())


class _Stage(nn.Module):
    """A stage in the form that torch's schedules call."""

    def __init__(self, run: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, received: Tensor, micro_batch: Tensor) -> Tensor:
        return self.run(received, int(micro_batch))


def with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """`x`, whose backward pass also runs that of a loss."""
    return _WithLoss.apply(x, loss)  # pyright: ignore[reportReturnType]


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.one = torch.ones_like(loss)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], ctx.one
