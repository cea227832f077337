"""Formatting generated texts: a line for each text, or a line of JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from addnorm.cli.lines import one_line
from addnorm.runs.types import Written


def as_lines(best: Sequence[Written], n_best: int) -> list[str]:
    """One line for each text, padded with empty lines up to `n_best`."""
    return [one_line(one.text) for one in best] + [""] * (n_best - len(best))


def as_json(best: Sequence[Written], number: int | str) -> list[str]:
    """One line of JSON for each text, with the number of its input, or its file."""
    return [json.dumps({"input": number, **asdict(one)}, ensure_ascii=False) for one in best]
