"""Estimates all plans of a training on a cluster, best first, with reasons for the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

from addnorm.errors import InputError
from addnorm.training.parallel.planner.cluster import Cluster
from addnorm.training.parallel.planner.memory import CACHED, Memory, layers_of, memory
from addnorm.training.parallel.planner.model import ModelSizes
from addnorm.training.parallel.planner.plan import Plan, divisors, meshes
from addnorm.training.parallel.planner.speed import StepTime, step_time
from addnorm.training.parallel.planner.traffic import Exchange, exchanges
from addnorm.training.parallel.planner.training import OURS, System, Training

DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A plan's memory, exchanges and time, each for the process that needs most."""

    plan: Plan
    micro_batches: int
    memory: Memory
    exchanges: tuple[Exchange, ...]
    time: StepTime
    mfu: float
    """Model FLOPs utilisation: needed operations, of the peak of all cards."""
    hfu: float
    """Hardware FLOPs utilisation: with the products that are computed again."""
    tokens_per_second: float
    """Of a card."""
    days: float | None
    """Of all steps; None if their number is unknown."""
    fits: bool


@lru_cache(CACHED)
def flops(sizes: ModelSizes, seq_len: int) -> float:
    """The operations of a token's forward pass, in one of `tensor` processes."""
    return sizes.flops(seq_len)


def estimate(
    sizes: ModelSizes, training: Training, plan: Plan, cluster: Cluster, system: System = OURS
) -> Estimate:
    """Estimate a plan, for a model of the given sizes in one of its `tensor` processes."""
    processes = _different(sizes, plan)
    sent = {p: exchanges(sizes, training, system, plan, p) for p in processes}
    times = {p: step_time(sizes, training, system, plan, cluster, sent[p], p) for p in processes}
    slowest = max(processes, key=lambda p: times[p].total)
    used = max((memory(sizes, training, system, plan, p) for p in processes), key=lambda m: m.total)
    seconds, peak = times[slowest].total, cluster.card.peak(training.precision) * plan.cards
    needed = 3 * training.tokens * plan.tensor * flops(sizes, training.seq_len)
    again = 1 / 3 if plan.checkpointing == "block" else system.recomputed / 3
    return Estimate(
        plan=plan,
        micro_batches=plan.micro_batches(training.rows),
        memory=used,
        exchanges=tuple(sent[slowest]),
        time=times[slowest],
        mfu=needed / (seconds * peak),
        hfu=needed * (1 + again) / (seconds * peak),
        tokens_per_second=training.tokens / seconds / plan.cards,
        days=None if training.steps is None else training.steps * seconds / DAY,
        fits=used.total <= cluster.card.memory,
    )


def _different(sizes: ModelSizes, plan: Plan) -> list[int]:
    """The processes of a pipeline that can need the most memory or time.

    The first and the last have the embedding and the head. Of those between, the first with the
    same layers as others holds most micro-batches at a time.
    """
    first = dict[frozenset[Any], int]()
    for process in range(1, plan.pipeline - 1):
        first.setdefault(frozenset(layers_of(sizes, plan.held, process)), process)
    return sorted({0, *first.values(), plan.pipeline - 1})


SizesOf = Callable[[int], ModelSizes]
"""The sizes of a model in a process of so many of `tensor`.

Raises `InputError` if it cannot be split among them.
"""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """The best plan for each split of the cards, sorted: first those that fit, by their time.

    `refused` says why a model is not split among so many processes of `tensor`.
    """

    estimates: tuple[Estimate, ...]
    refused: dict[int, str]


def plans(sizes_of: SizesOf, training: Training, cluster: Cluster, system: System = OURS) -> Plans:
    """Estimate all plans; there are none if a step is too small for all cards."""
    sizes, refused = _sizes(sizes_of, cluster.cards)
    best = [
        best_of(sizes[mesh.tensor], training, mesh, cluster, system)
        for mesh in meshes(
            cluster.cards,
            rows=training.rows,
            n_layers=len(sizes[1].layers),
            seq_len=training.seq_len,
        )
        if mesh.tensor in sizes
    ]
    return Plans(estimates=tuple(sorted(best, key=_rank)), refused=refused)


def _sizes(sizes_of: SizesOf, cards: int) -> tuple[dict[int, ModelSizes], dict[int, str]]:
    """The model's sizes for each number of `tensor` processes, or why it cannot be split so."""
    sizes, refused = {1: sizes_of(1)}, dict[int, str]()
    for tensor in divisors(cards)[1:]:
        try:
            sizes[tensor] = sizes_of(tensor)
        except InputError as error:
            refused[tensor] = str(error)
    return sizes, refused


def _rank(estimate: Estimate) -> tuple[bool, float]:
    return not estimate.fits, estimate.time.total if estimate.fits else estimate.memory.total


def best_of(
    sizes: ModelSizes, training: Training, mesh: Plan, cluster: Cluster, system: System
) -> Estimate:
    """The best rows, schedule and checkpointing for one way to split the cards."""
    best = list[Estimate]()
    for rows in rows_at_once(training.rows, mesh.data):
        variants = variants_of(replace(mesh, rows=rows), training.rows, len(sizes.layers))
        tried = [estimate(sizes, training, plan, cluster, system) for plan in variants]
        best = [min([*best, *tried], key=_rank)]
        if not any(each.fits for each in tried):
            break  # more rows need more memory
    return best[0]


def rows_at_once(total: int, data: int) -> Iterator[int]:
    """Yield the numbers of rows that a process may take at once: powers of two, and the most.

    The batches of a step have as many rows, at least one for each process, and of those that
    divide among the processes if any do.
    """
    even = total % data == 0
    batches = [n for n in divisors(total) if n >= data and (n % data == 0 or not even)]
    each = {ceil(n / data) for n in batches}
    yield from sorted(rows for rows in each if rows.bit_count() == 1 or rows == max(each))


def variants_of(plan: Plan, rows: int, n_layers: int) -> Iterator[Plan]:
    """Yield a plan with each schedule, with and without checkpointing.

    Interleaved stages need as many micro-batches as a multiple of the pipeline (Narayanan et al.
    2021, §2.2). GPipe takes as long as 1F1B and more memory.
    """
    for scheduled in (plan, *_interleaved(plan, rows, n_layers)):
        yield scheduled
        yield replace(scheduled, checkpointing="block")


def _interleaved(plan: Plan, rows: int, n_layers: int) -> Iterator[Plan]:
    if plan.pipeline == 1 or plan.micro_batches(rows) % plan.pipeline:
        return
    for stages in (2, 4, 8):
        if plan.pipeline * stages <= n_layers:
            yield replace(plan, schedule="interleaved", stages=stages)


def why_not(estimate: Estimate, best: Estimate, cluster: Cluster) -> str:
    """Why a plan does not fit, or what makes it slower than the best."""
    memory = vars(estimate.memory)
    largest = max(memory, key=memory.__getitem__)
    if not estimate.fits:
        return (
            f"needs {estimate.memory.total / 1e9:,.0f} GB of {cluster.card.memory / 1e9:,.0f}, "
            f"{memory[largest] / 1e9:,.0f} of them {largest}"
        )
    excess = {
        name: seconds - vars(best.time)[name] for name, seconds in vars(estimate.time).items()
    }
    most = max(excess, key=excess.__getitem__)
    return f"{estimate.time.total / best.time.total:.2f} × the time: {COSTS[most]}"


COSTS = {
    "products": "products are smaller, or computed again",
    "attention": "attention is computed again",
    "memory": "more goes through memory",
    "tensor": "hidden states are exchanged in every layer",
    "context": "keys and values are gathered in every layer",
    "pipeline": "outputs of stages are sent",
    "data": "weights or gradients are exchanged",
    "idle": "stages of the pipeline wait",
    "optimizer": "each card updates more weights",
}
"""What a plan's time goes to, in words."""
