"""Plans: how cards split rows, weights, layers and texts, and in which order they work."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Literal

Schedule = Literal["1f1b", "gpipe", "interleaved"]
Checkpointed = Literal["none", "block"]


@dataclass(frozen=True)
class Held:
    """What a pipeline process holds: some stages, and one shard of each weight."""

    pipeline: int = 1
    stages: int = 1
    shards: int = 1

    def layers(self, n_layers: int, process: int) -> list[range]:
        """The layers of each stage of a pipeline process, from first to last.

        Stage k of n has the layers from `k n_layers / n` on, rounded down.
        """
        n = self.pipeline * self.stages
        bounds = [n_layers * k // n for k in range(n + 1)]
        own = range(process, n, self.pipeline)
        return [range(bounds[k], bounds[k + 1]) for k in own]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan; the product of its numbers is the number of all cards.

    Each process of `data` takes at most `rows` rows at a time. With `interleaved`, a process of
    `pipeline` has several `stages` of consecutive layers; otherwise one.
    """

    data: int = 1
    shard: bool = False
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    schedule: Schedule = "1f1b"
    stages: int = 1
    rows: int = 1
    checkpointing: Checkpointed = "none"

    @property
    def cards(self) -> int:
        """The number of cards."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def replicas(self) -> int:
        """The number of cards with the same weights, or shards of them, but other tokens."""
        return self.data * self.context

    def micro_batches(self, rows: int) -> int:
        """The number of equal micro-batches that each process computes in a step of `rows` rows."""
        fewest = ceil(rows / (self.data * self.rows))
        return next(n for n in range(fewest, rows + 1) if rows % n == 0)

    @property
    def held(self) -> "Held":
        """What each process holds of a model under this plan."""
        return Held(self.pipeline, self.stages, self.replicas if self.shard else 1)

    def in_flight(self, rows: int, process: int) -> float:
        """The largest number of micro-batches whose activations a process holds at once.

        One after the other without a pipeline; with GPipe all, with 1F1B as many as there are
        stages from here on (Narayanan et al. 2021, §2.2), interleaved up to `1 + (p - 1) / (p v)`
        times as many (Korthikanti et al. 2022, §4.2.3).
        """
        n, p, v = self.micro_batches(rows), self.pipeline, self.stages
        if p == 1:
            return 1
        if self.schedule == "gpipe":
            return n
        if self.schedule == "1f1b":
            return min(n, p - process)
        return min(n * v, 2 * (p - process - 1) + (v - 1) * p + 1) / v

    def bubble(self, rows: int) -> float:
        """The idle time of a pipeline, as a share of its work: `(p - 1) / (v m)`.

        Narayanan et al. 2021, §2.2.
        """
        return (self.pipeline - 1) / (self.stages * self.micro_batches(rows))

    def __str__(self) -> str:
        sizes = {"data": self.data} | self.splits
        words = [f"{name} {n}" for name, n in sizes.items() if n > 1] or ["one card"]
        words += ["shard"] if self.shard else []
        if self.pipeline > 1:
            words.append(self.schedule + (f" {self.stages}" if self.stages > 1 else ""))
        return ", ".join(words)

    @property
    def splits(self) -> dict[str, int]:
        """The numbers of cards by what they split, except rows."""
        return {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}


def meshes(cards: int, *, rows: int, n_layers: int, seq_len: int) -> Iterator[Plan]:
    """Yield every way to split the cards that the model and the step allow, with one row at a time.

    Each process of `data` has a row at least, each of `pipeline` a layer, and each of `context` two
    pieces of a text.
    """
    for tensor in divisors(cards):
        for pipeline in divisors(cards // tensor):
            for context in divisors(cards // tensor // pipeline):
                data = cards // tensor // pipeline // context
                if rows < data or pipeline > n_layers or seq_len % (2 * context) * (context > 1):
                    continue
                for shard in (False, True)[: 1 + (data * context > 1)]:
                    yield Plan(
                        data=data, shard=shard, tensor=tensor, pipeline=pipeline, context=context
                    )


def divisors(n: int) -> list[int]:
    """The numbers that divide n, ascending."""
    small = [k for k in range(1, isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})
