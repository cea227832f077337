"""Formatting generated texts: a line for each text, or a line of JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from addnorm.cli.lines import one_line
from addnorm.runs.types import Written


def as_lines(best: Sequence[Written], n_best: int) -> list[str]:
    """One line for each text, padded with empty lines up to `n_best`."""
    return [one_line(one.text) for one in best] + [""] * (n_best - len(best))


def as_json(
    best: Sequence[Written],
    number: int | str,
    *,
    deep: bool = False,
    messages: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """One line of JSON for each text, with the number of its input, or its file.

    `deep` adds the depth, of models whose tokens leave early; `messages` are the conversation that
    it answers, which is written with the answer at its end.
    """
    rows = [{"input": number, **_conversation(messages, one.text), **asdict(one)} for one in best]
    if not deep:
        rows = [{name: value for name, value in row.items() if name != "depth"} for row in rows]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _conversation(messages: Sequence[Mapping[str, str]], answer: str) -> dict[str, object]:
    if not messages:
        return {}
    return {"messages": [*messages, {"role": "assistant", "content": answer}]}


def depth_of(best: Sequence[Written], number: int) -> str:
    """The layers that a token of a text took, in the mean, in words."""
    depth = best[0].depth
    mean = "its one token took every layer" if depth is None else f"mean depth {depth:.2f} layers"
    return f"text {number}: {mean}"
