"""Formatting generated texts, whatever they contain, as one line each."""

import json

from addnorm.cli.generated import as_json, as_lines, depth_of
from addnorm.runs.types import Written


def test_lines_hold_no_line_breaks() -> None:
    assert as_lines([Written("a\nb", 0.0, "eos")], 3) == ["a\\nb", "", ""]


def test_json_holds_the_text_exactly() -> None:
    [first, second] = as_json([Written("a\n日", -0.5, "eos"), Written("", -1.0, "length")], 7)
    assert json.loads(first) == {"input": 7, "text": "a\n日", "score": -0.5, "finished": "eos"}
    assert "日" in first
    assert json.loads(second)["finished"] == "length"


def test_the_depth_stands_where_it_is_asked_for() -> None:
    texts = [Written("a", -0.5, "eos", 1.25), Written("", -1.0, "eos")]
    first, second = as_json(texts, 7, deep=True)
    assert json.loads(first)["depth"] == 1.25
    assert json.loads(second)["depth"] is None
    assert depth_of(texts, 7) == "text 7: mean depth 1.25 layers"
    assert depth_of(texts[1:], 8) == "text 8: its one token took every layer"
