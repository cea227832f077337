"""Requests that arrive at random, are cancelled, and wait for each other."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from tests.serve.engine.tiny import Answered

from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.sequence import Request
from addnorm.serve.engine.slots import RowBuffers

PROMPT = (4, 9, 5, 28, 7, 7, 11)

ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "length": st.integers(1, 20),
            "limit": st.integers(0, 9),
            "n": st.integers(1, 3),
            "priority": st.integers(0, 2),
            "pause": st.integers(0, 4),
            "cancelled": st.sampled_from([None, "all", 0, 1]),
            "kind": st.sampled_from(["greedy", "sample", "beam", "scored"]),
        }
    ),
    max_size=8,
)


def request(name: str, prompt: tuple[int, ...] = PROMPT, limit: int = 12, **more: Any) -> Request:
    """A request; what it has no field for are options."""
    fields = {key: more.pop(key) for key in ("n", "priority", "deadline", "salt") if key in more}
    return Request(name=name, prompt=prompt, limit=limit, options=Options(**more), **fields)


def request_of(arrival: dict[str, Any]) -> Request:
    """The request that arrives, named "r"."""
    length = arrival["length"]
    prompt = tuple((5 * i * i + length) % 26 + 4 for i in range(length))
    more: dict[str, Any] = {"n": arrival["n"]}
    match arrival["kind"]:
        case "greedy":
            more |= {"decoding": "greedy", "log_probs": 0}
        case "sample":
            more |= {"temperature": 1.5, "seed": length, "log_probs": 0}
        case "beam":
            more |= {"beams": 2, "n": 1}
        case _:
            more |= {"decoding": "greedy", "prompt_log_probs": True, "log_probs": 1}
    return request("r", prompt, arrival["limit"], **more)


def give_room(engine: Engine, n_tokens: int) -> None:
    """Let the rows of an engine that are not in pages have so many tokens."""
    engine._batches._buffers = RowBuffers(engine._next_token, n_tokens, in_place=True)
    engine._batches.most_tokens = n_tokens


Key = tuple[str, int]
"""The name of a request and the number of one of its answers."""


@dataclass
class Arriving:
    """An engine to which requests come, and the news of it."""

    engine: Engine
    answers: dict[Key, Answered] = field(default_factory=dict[Key, Answered])
    gone: set[Key] = field(default_factory=set[Key])

    def step(self) -> None:
        """Compute a step; no news may come of what was cancelled."""
        for event in self.engine.step():
            assert (event.name, event.index) not in self.gone
            self.answers.setdefault((event.name, event.index), Answered()).hear(event)

    def cancel(self, name: str, index: int | None, n: int) -> None:
        """Cancel one of the `n` answers of a request, or all."""
        self.gone |= {(name, k) for k in range(n) if index in (None, k)}
        self.engine.cancel(name, index)


def answers_of_arrivals(
    engine: Engine, arrivals: list[dict[str, Any]]
) -> Iterator[tuple[Request, int, Answered]]:
    """Each request, the number of its answer and the answer, unless it was cancelled."""
    arriving = Arriving(engine)
    requests = {f"r{i}": request_of(arrival) for i, arrival in enumerate(arrivals)}
    for (name, asks), arrival in zip(requests.items(), arrivals, strict=True):
        engine.add(replace(asks, name=name, priority=arrival["priority"]))
        for _ in range(arrival["pause"]):
            arriving.step()
        if (index := arrival["cancelled"]) is not None:
            arriving.cancel(name, None if index == "all" else index, asks.n)
    while engine.is_busy:
        arriving.step()
    for name, asks in requests.items():
        for k in range(asks.n):
            if (name, k) not in arriving.gone:
                yield asks, k, arriving.answers[name, k]
