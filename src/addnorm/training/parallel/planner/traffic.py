"""The bytes that a card exchanges in a step, by collective and by content."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from addnorm.training.parallel.planner.memory import (
    all_weights,
    held_values,
    layers_of,
    parts_of,
    weights_of,
)
from addnorm.training.parallel.planner.model import ModelSizes, Weight
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.training import WIDE, System, Training

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]
Axis = Literal["data", "tensor", "pipeline", "context"]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What a card exchanges in a step with the other cards of its group along one axis.

    `bytes` counts whole tensors: the sum, or all pieces together.
    """

    axis: Axis
    collective: Collective
    of: str
    processes: int
    bytes: float
    calls: float

    @property
    def sent(self) -> float:
        """The bytes that each card sends around a ring (Rajbhandari et al. 2020, §7)."""
        n = self.processes
        if self.collective == "send":
            return self.bytes
        return self.bytes * (n - 1) / n * (2 if self.collective == "all_reduce" else 1)


def exchanges(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> list[Exchange]:
    """All exchanges of a pipeline process in a step, except those of a few numbers."""
    every = [
        *(_of_tensor(sizes, training, system, plan, process) if plan.tensor > 1 else ()),
        *(_of_context(sizes, training, plan, process) if plan.context > 1 else ()),
        *(_of_pipeline(sizes, training, system, plan, process) if plan.pipeline > 1 else ()),
        *_of_gradients(sizes, training, system, plan, process),
        *(_of_matrices(sizes, plan, process) if training.states.by_matrix else ()),
    ]
    return [exchange for exchange in every if exchange.bytes]


def _of_tensor(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> Iterator[Exchange]:
    """Sums of hidden states, of their gradients, of losses, and of weights with several copies.

    Shoeybi et al. 2019, §3. Layers that are computed again are summed again.
    """
    parts = parts_of(sizes, plan.held, process)
    n = plan.micro_batches(training.rows)
    tokens = n * plan.rows * training.seq_len // plan.context
    again = plan.checkpointing == "block"
    left = sum((part.left + part.again * again) * k for part, k in parts)
    entered = sum(part.entered * k for part, k in parts)
    yield Exchange(
        axis="tensor",
        collective="all_reduce",
        of="hidden states",
        processes=plan.tensor,
        bytes=tokens * left * training.products,
        calls=n * left / sizes.d_model,
    )
    yield Exchange(
        axis="tensor",
        collective="all_reduce",
        of="gradients of hidden states",
        processes=plan.tensor,
        bytes=tokens * entered * system.stream,
        calls=n * entered / sizes.d_model,
    )
    if process == plan.pipeline - 1 and sizes.logits:
        yield Exchange(
            axis="tensor",
            collective="all_reduce",
            of="losses",
            processes=plan.tensor,
            bytes=tokens * WIDE * (4 if training.smoothed else 3),
            calls=2 * n,
        )
    copied = sum(k for w, k in weights_of(sizes, plan.held, process) if w.copies > 1)
    _, _, values = held_values(sizes, training.states, plan.held, process)
    yield Exchange(
        axis="tensor",
        collective="all_gather",
        of="gradients of copies",
        processes=plan.tensor,
        bytes=plan.tensor * system.gradients * values,
        calls=copied,
    )


def _of_context(
    sizes: ModelSizes, training: Training, plan: Plan, process: int
) -> Iterator[Exchange]:
    """Keys and values of every layer, gathered; their gradients, summed into pieces.

    Llama Team 2024, §3.3.2.
    """
    heads = [
        (a, k)
        for part, k in layers_of(sizes, plan.held, process)
        for a in part.attention
        if not a.cross
    ]
    n = plan.micro_batches(training.rows)
    values = sum(2 * a.kv_heads * a.d_head * k for a, k in heads)
    whole = n * plan.rows * training.seq_len * values * training.products
    again = 2 if plan.checkpointing == "block" else 1
    yield Exchange(
        axis="context",
        collective="all_gather",
        of="keys and values",
        processes=plan.context,
        bytes=again * whole,
        calls=again * n * sum(k for _, k in heads),
    )
    yield Exchange(
        axis="context",
        collective="reduce_scatter",
        of="gradients of keys and values",
        processes=plan.context,
        bytes=whole,
        calls=n * sum(k for _, k in heads),
    )


def _of_pipeline(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> Iterator[Exchange]:
    """Hidden states to the next stage, and their gradients to the one before."""
    n = plan.micro_batches(training.rows)
    state = plan.rows * training.seq_len // plan.context * sizes.d_model * system.stream
    state /= plan.tensor if system.scattered else 1
    first, last = process == 0, process == plan.pipeline - 1
    for of, stages in (
        ("outputs of stages", plan.stages - last),
        ("gradients of stages", plan.stages - first),
    ):
        yield Exchange(
            axis="pipeline",
            collective="send",
            of=of,
            processes=2,
            bytes=n * stages * state,
            calls=n * stages,
        )
    tied = sum(weight.padded(plan.held.shards) for weight in sizes.tied)
    present = sum(k for _, k in all_weights(sizes))
    yield Exchange(
        axis="pipeline",
        collective="all_reduce",
        of="gradients of tied weights" if tied else "which gradients there are",
        processes=plan.pipeline,
        bytes=system.gradients * (tied * (first or last) + present),
        calls=1,
    )


def _of_gradients(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> Iterator[Exchange]:
    """One sum of all gradients per step; for shards, the weights and gradients of each pass.

    A layer is gathered for each pass; embedding and head stay gathered from forward to backward.
    """
    weights = weights_of(sizes, plan.held, process)
    if not plan.shard:
        group = plan.replicas
        values = sum(weight.size * k for weight, k in weights)
        values += sum(k for _, k in all_weights(sizes))  # whether each is present
        yield Exchange(
            axis="data",
            collective="all_reduce",
            of="gradients",
            processes=group,
            bytes=system.gradients * values * (group > 1),
            calls=1,
        )
        return
    n = 1 if system.once else plan.micro_batches(training.rows)
    layers = layers_of(sizes, plan.held, process)
    units = 1 + sum(k for _, k in layers)
    whole = plan.replicas * sum(weight.padded(plan.replicas) * k for weight, k in weights)
    again = plan.replicas * sum(
        w.padded(plan.replicas) * k for part, k in layers for w in part.weights
    )
    again *= not system.once
    yield Exchange(
        axis="data",
        collective="all_gather",
        of="weights",
        processes=plan.replicas,
        bytes=n * system.gathered * (whole + again),
        calls=n * (2 * units - 1),
    )
    yield Exchange(
        axis="data",
        collective="reduce_scatter",
        of="gradients",
        processes=plan.replicas,
        bytes=n * system.gradients * whole,
        calls=n * units,
    )


AT_ONCE = 2**22
"""The values of matrices of one shape that Muon changes together."""


def _of_matrices(sizes: ModelSizes, plan: Plan, process: int) -> Iterator[Exchange]:
    """Matrices gathered whole for the optimiser, and the results that each process computes.

    Each computes as many matrices of a shape; of fewer than processes, each computes all.
    """
    matrices = Counter[Weight]()
    for weight, k in weights_of(sizes, plan.held, process):
        matrices[weight] += k * weight.inner
    for axis, n in (("tensor", plan.tensor), ("data", plan.replicas if plan.shard else 1)):
        size = calls = 0.0
        for weight, k in matrices.items():
            if n == 1 or (axis == "tensor" and weight.copies > 1):
                continue
            whole = weight.size * plan.tensor
            together = max(1, min(k, AT_ONCE // whole))
            computed = -(-together // n) * n if together >= n else 0
            size += whole * (k + computed * k / together)
            calls += k / together * (2 if computed else 1)
        yield Exchange(
            axis="tensor" if axis == "tensor" else "data",
            collective="all_gather",
            of="matrices of Muon",
            processes=n,
            bytes=WIDE * size,
            calls=calls,
        )
