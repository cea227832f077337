"""The time of a step under a plan: products, attention, memory traffic, exchanges, idle time."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, prod

from addnorm.training.parallel.planner.cluster import COPIED, SHAPES, Card, Cluster, Link
from addnorm.training.parallel.planner.memory import CACHED, held_values, parts_of, saved_bytes
from addnorm.training.parallel.planner.model import ModelSizes, Part, Product
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.traffic import Exchange
from addnorm.training.parallel.planner.training import WIDE, System, Training

RAMP = 128
"""A product's inner size at which it reaches half of its rate: a tile of 128 × 128 is begun and
ended in the time of as many steps of its sum (estimated).
"""

PASSES = 5
"""How often a saved value goes through memory: written and read forward, read backward, and its
gradient written and read.
"""

BACKWARD = 2.5
"""The products of fused attention backward, for each of forward, scores computed again (Dao 2023,
§4.1).
"""

BUSY = 0.9
"""The share of a step in which kernels run: the rest are gaps between them, and waiting for the
slowest card (estimated).
"""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The seconds of a step, split by cause.

    Exchanges by axis count as far as products do not hide them; `idle` is the bubble of a pipeline.
    """

    products: float
    attention: float
    memory: float
    tensor: float
    context: float
    pipeline: float
    data: float
    idle: float
    optimizer: float

    @property
    def total(self) -> float:
        """The seconds of the whole step."""
        return sum(vars(self).values())


def product_seconds(m: float, k: float, n: float, card: Card, precision: str, width: int) -> float:
    """The time of a product of `m × k` and `k × n`: bound by operations or by bytes."""
    rate = card.peak(precision) * card.measured * SHAPES * k / (k + RAMP)
    moved = width * (m * k + k * n + m * n) / (card.bandwidth * COPIED)
    return max(2 * m * k * n / rate, moved)


@lru_cache(CACHED)
def of_products(part: Part, tokens: float, training: Training, card: Card, forward: float) -> float:
    """The time of a part's products: `forward` times each forward, and two each backward."""
    precision, width = training.precision, training.products

    def seconds(product: Product) -> float:
        m, k, n = tokens * product.share, product.d_in, product.d_out
        shapes = ((m, k, n, forward), (m, n, k, 1.0), (k, m, n, 1.0))
        return sum(
            times * product_seconds(a, b, c, card, precision, width) for a, b, c, times in shapes
        )

    return sum(map(seconds, part.products))


@lru_cache(CACHED)
def of_attention(
    part: Part, tokens: float, training: Training, card: Card, forward: float
) -> float:
    """The time of scores and weighted sums: fused at its measured share, else as products."""
    seconds = 0.0
    for attention in part.attention:
        operations = 4 * tokens * attention.heads * attention.d_head
        if attention.scores:
            rate = card.peak(training.precision) * card.measured * SHAPES
            rate *= attention.d_head / (attention.d_head + RAMP)
            seconds += operations * attention.keys(training.seq_len) * (forward + 2) / rate
        else:
            rate = card.peak(training.precision) * card.attention
            keys = attention.allowed(training.seq_len)
            seconds += operations * keys * (forward + BACKWARD) / rate
    return seconds


def step_time(
    sizes: ModelSizes,
    training: Training,
    system: System,
    plan: Plan,
    cluster: Cluster,
    exchanged: Iterable[Exchange],
    process: int,
) -> StepTime:
    """The time of a step, if each process of the pipeline took as long as this one."""
    card, n = cluster.card, plan.micro_batches(training.rows)
    tokens = plan.rows * training.seq_len / plan.context
    forward = 2.0 if plan.checkpointing == "block" else 1.0 + system.recomputed
    parts = parts_of(sizes, plan.held, process)
    by_axis = dict.fromkeys(("data", "tensor", "pipeline", "context"), 0.0)
    for exchange in exchanged:
        by_axis[exchange.axis] += seconds_of(exchange, plan, cluster, system.order)
    kernels = n / BUSY
    products = kernels * sum(
        of_products(part, tokens, training, card, forward) * k for part, k in parts
    )
    attention = kernels * sum(
        of_attention(part, tokens, training, card, forward) * k for part, k in parts
    )
    moved = sum(
        saved_bytes(part, training, system, plan.rows, plan.context) * k for part, k in parts
    )
    if process == plan.pipeline - 1:
        moved += tokens * _logits(sizes) * (training.products + WIDE)
    memory = kernels * PASSES * moved * (forward + 2) / 3 / (card.bandwidth * COPIED)
    computed = products + attention + memory
    sends = max(0.0, by_axis["pipeline"] - computed * system.overlaps)
    inside = by_axis["tensor"] + by_axis["context"] + sends
    values, states, _ = held_values(sizes, training.states, plan.held, process)
    updated = 2 * WIDE * (values + states) + 2 * system.gradients * values
    return StepTime(
        products=products,
        attention=attention,
        memory=memory,
        tensor=by_axis["tensor"],
        context=by_axis["context"],
        pipeline=sends,
        data=exposed(by_axis["data"], computed, n, system, plan),
        idle=plan.bubble(training.rows) * (computed + inside),
        optimizer=updated / (card.bandwidth * COPIED),
    )


def exposed(seconds: float, computed: float, n: int, system: System, plan: Plan) -> float:
    """The time of exchanging weights and gradients that computation does not hide.

    Shards are exchanged while other layers compute; a sum of gradients begins when the last is
    there, or is hidden behind the backward pass of the last micro-batch.
    """
    if plan.shard and not system.once:
        return max(0.0, seconds - computed)
    hidden = computed / n * 2 / 3 if system.overlaps else 0.0
    return max(0.0, seconds - hidden)


def seconds_of(exchange: Exchange, plan: Plan, cluster: Cluster, order: tuple[str, ...]) -> float:
    """The time of an exchange over the link of its axis."""
    link, bandwidth = link_of(exchange, plan, cluster, order)
    hops = max(1, ceil(log2(exchange.processes)))
    return exchange.sent / bandwidth + exchange.calls * link.latency * hops


def link_of(
    exchange: Exchange, plan: Plan, cluster: Cluster, order: tuple[str, ...]
) -> tuple[Link, float]:
    """The link of an exchange, and each card's bytes per second on it."""
    sizes = plan.splits | {"data": plan.data}
    inner = order[: order.index(exchange.axis)]
    if exchange.axis == "data" and exchange.processes > plan.data:  # among texts and their parts
        inner = tuple(axis for axis in inner if axis != "context")
    stride = prod(sizes[axis] for axis in inner)
    return cluster.link(exchange.processes, stride)


def _logits(sizes: ModelSizes) -> int:
    return sum(product.d_out for product in sizes.head.products) if sizes.logits else 0
