"""The pictures of the demo: tokens become words, and fonts that are missing are named."""

from io import StringIO

import pytest
import torch
from rich.console import Console

from addnorm.demo.drawing import gathered, warn_of_fonts, words_of
from addnorm.inspect import pictures


def test_fonts_are_asked_for_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = pictures._upright()
    own = [entry for entry in installed if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(pictures, "_upright", lambda: own)
    said = StringIO()
    warn_of_fonts(["5. März 2026"], Console(file=said))
    assert said.getvalue() == ""
    warn_of_fonts(["2026年3月5日"], Console(file=said, width=200))
    assert said.getvalue().startswith("No installed font draws 年 日 月: ")
    assert "fonts-noto-cjk" in said.getvalue()


def test_pieces_join_to_words_where_there_are_spaces() -> None:
    pieces = ["Don", "nerstag", ",", " 5", ".", " Mär", "z"]
    assert words_of(pieces) == [("Donnerstag,", [0, 1, 2]), ("5.", [3, 4]), ("März", [5, 6])]


def test_each_token_is_a_word_without_spaces() -> None:
    assert words_of(["2026年", "3月", "5日"]) == [("2026年", [0]), ("3月", [1]), ("5日", [2])]
    assert words_of(["5日", " 16", ":06"]) == [("5日", [0]), ("16", [1]), (":06", [2])]


def test_without_pieces_words_are_empty() -> None:
    assert words_of([]) == []


def test_gathering_sums_over_source_and_averages_over_target() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    found = gathered(weights, rows=[[0, 1], [2]], columns=[[0, 1], [2]])
    assert torch.allclose(found, torch.tensor([[0.65, 0.35], [0.0, 1.0]]))
    assert torch.allclose(found.sum(1), torch.ones(2))
