"""The memory of a card under a plan, split by use."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from addnorm.training.parallel.planner.model import ModelSizes, Part, Weight
from addnorm.training.parallel.planner.plan import Held, Plan
from addnorm.training.parallel.planner.training import NARROW, WIDE, States, System, Training

T = TypeVar("T")

CACHED = 2**14
"""How many results are kept of what many plans share."""

LOGITS_AT_ONCE = 2**22
"""The logits of a batch up to which the loss saves them; of more, it computes a few at a time."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The bytes used on a card, split by use.

    `buffers` are gathered and cast weights while layers run, or sums of gradients on their way.
    """

    weights: float
    gradients: float
    optimizer: float
    average: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """The bytes of all uses."""
        return sum(vars(self).values())


def memory(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> Memory:
    """The memory that a pipeline process needs.

    Weights, gradients and states are split over `data` by `shard` (Rajbhandari et al. 2020, stage
    3). Activations are those of the micro-batches in flight (Korthikanti et al. 2022, §4 and 5).
    """
    values, states, _ = held_values(sizes, training.states, plan.held, process)
    activations = activations_of(sizes, training, system, plan, process)
    work = activations + working_weights(sizes, training, system, plan, process)
    sums = 0.0 if plan.shard or plan.replicas == 1 else 2 * system.gradients * values
    return Memory(
        weights=system.weights * values,
        gradients=system.gradients * values,
        optimizer=WIDE * states,
        average=system.weights * values if training.average else 0,
        activations=activations,
        buffers=max(work, sums) - activations,
    )


Counted = list[tuple[T, int]]
"""Things, and how many there are of each."""


@lru_cache(CACHED)
def layers_of(sizes: ModelSizes, held: Held, process: int) -> Counted[Part]:
    """The layers of a pipeline process, with equal ones counted together."""
    stages = held.layers(len(sizes.layers), process)
    return [*Counter(sizes.layers[i] for stage in stages for i in stage).items()]


def parts_of(sizes: ModelSizes, held: Held, process: int) -> Counted[Part]:
    """The parts of a pipeline process: its layers, and at the ends the embedding and the head."""
    first: Counted[Part] = [(sizes.embed, 1)] if process == 0 else []
    last: Counted[Part] = [(sizes.head, 1)] if process == held.pipeline - 1 else []
    return [*first, *layers_of(sizes, held, process), *last]


@lru_cache(CACHED)
def weights_of(sizes: ModelSizes, held: Held, process: int) -> Counted[Weight]:
    """The weights of a pipeline process; tied ones count once."""
    weights: Counted[Weight] = [(weight, 1) for weight in sizes.shared]
    for part, n in parts_of(sizes, held, process):
        again = len(sizes.tied) if part is sizes.head and held.pipeline == 1 else 0
        weights += [(weight, n) for weight in part.weights[: len(part.weights) - again]]
    return weights


def all_weights(sizes: ModelSizes) -> Counted[Weight]:
    """The weights of the whole model; tied ones count once."""
    return weights_of(sizes, Held(), 0)


@lru_cache(CACHED)
def held_values(
    sizes: ModelSizes, states: States, held: Held, process: int
) -> tuple[float, float, float]:
    """The numbers of values that a process holds: weights, optimiser states, and copied weights.

    An optimiser also has its numbers of the weights of other stages, which are empty here.
    """
    values = moments = copies = 0.0
    if held.pipeline > 1:
        empty = Counter[Weight]()
        for weight, n in all_weights(sizes):
            empty[weight] += n
        for weight, n in weights_of(sizes, held, process):
            empty[weight] -= n
        moments += sum(n * states.values(0, inner=weight.inner) for weight, n in empty.items())
    for weight, n in weights_of(sizes, held, process):
        size = weight.padded(held.shards)
        values += n * size
        moments += n * states.values(size, inner=weight.inner)
        copies += n * size * (weight.copies > 1)
    return values, moments, copies


def activations_of(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> float:
    """The bytes of saved activations at the peak."""
    layers = layers_of(sizes, plan.held, process)
    saved = [
        (saved_bytes(layer, training, system, plan.rows, plan.context), n) for layer, n in layers
    ]
    in_flight = plan.in_flight(training.rows, process)
    if plan.checkpointing == "block":
        tokens = plan.rows * training.seq_len // plan.context
        inputs = system.stream * sizes.d_model * tokens * sum(n for _, n in saved)
        held = in_flight * inputs + max((size for size, _ in saved), default=0.0)
    else:
        held = in_flight * sum(size * n for size, n in saved)
    if process == 0:
        held += in_flight * saved_bytes(sizes.embed, training, system, plan.rows, plan.context)
    if process == plan.pipeline - 1:
        held += saved_bytes(sizes.head, training, system, plan.rows, plan.context)
        held += loss_bytes(sizes, training, system, plan)
    return held


@lru_cache(CACHED)
def saved_bytes(part: Part, training: Training, system: System, rows: int, context: int) -> float:
    """The bytes that a part saves for each micro-batch."""
    wide, narrow = system.stream, training.products
    seq, local = training.seq_len, training.seq_len // context
    tokens, saved = rows * local, part.saved
    copies = saved.copies * narrow if narrow != wide else 0
    masks = saved.masks * (narrow if training.on_cpu else 1)
    of_token = saved.stream * wide + saved.products * narrow + copies + masks + saved.bytes
    total = tokens * of_token + local * saved.positions * WIDE
    for attention in part.attention:
        scores = attention.scores_on_cpu if training.on_cpu else attention.scores
        if scores:  # the softmax is in float32
            total += tokens * attention.heads * seq * (WIDE + (scores - 1) * narrow)
        total += local * seq * (attention.bias * narrow + attention.bias_bytes)
        gathered = 2 * attention.kv_heads * attention.d_head * narrow
        total += rows * (seq - local) * gathered
    return total


def loss_bytes(sizes: ModelSizes, training: Training, system: System, plan: Plan) -> float:
    """The bytes that the loss over tokens saves.

    Of few logits these themselves, and the hidden states; of many, computed a few rows at a time,
    the gradients by the hidden states and by the weights of the head.
    """
    if not sizes.logits:
        return 0.0
    tokens = plan.rows * training.seq_len // plan.context
    if plan.tensor == 1 and tokens * sizes.logits <= LOGITS_AT_ONCE:
        return tokens * (sizes.d_model + sizes.logits) * training.products
    return tokens * sizes.d_model * system.stream + WIDE * sum(
        product.d_in * product.d_out for product in sizes.head.products
    )


def working_weights(
    sizes: ModelSizes, training: Training, system: System, plan: Plan, process: int
) -> float:
    """The bytes of gathered weights, and of weights cast to another type, while layers run.

    A sharded layer is gathered, and the next one meanwhile; embedding and head stay gathered.
    """
    layers = layers_of(sizes, plan.held, process)
    of_layers = sum(layer.size * n for layer, n in layers)
    whole = sum(weight.size * n for weight, n in weights_of(sizes, plan.held, process))
    largest = max((layer.size for layer, _ in layers), default=0)
    cast = NARROW * whole * (training.products < system.weights and system.cast)
    if not plan.shard:
        return cast
    gathered = whole if system.once else whole - of_layers + 2 * largest
    return cast + system.gathered * gathered + system.gradients * largest
