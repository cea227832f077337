"""Formatting generated texts, whatever they contain, as one line each."""

import json

from addnorm.cli.generated import as_json, as_lines
from addnorm.runs.types import Written


def test_lines_hold_no_line_breaks() -> None:
    assert as_lines([Written("a\nb", 0.0, "eos")], 3) == ["a\\nb", "", ""]


def test_json_holds_the_text_exactly() -> None:
    [first, second] = as_json([Written("a\n日", -0.5, "eos"), Written("", -1.0, "length")], 7)
    assert json.loads(first) == {"input": 7, "text": "a\n日", "score": -0.5, "finished": "eos"}
    assert "日" in first
    assert json.loads(second)["finished"] == "length"
