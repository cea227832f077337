"""A shortened demo: it trains, evaluates, translates, plots, and keeps other files safe."""

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import addnorm.demo as demo_module
from addnorm.data.examples import Pair
from addnorm.demo import clear, demo, gathered, varied, warn_of_fonts, words_of
from addnorm.errors import InputError
from addnorm.inspect import pictures


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps of the demo's own recipe."""
    read = demo_module.read_recipe

    def read_short(file: Path, overrides: dict[str, str]) -> object:
        small = {"data.n_train": "400", "data.n_valid": "5", "data.n_test": "60"}
        return read(file, overrides | small | {"train.steps": "3", "model.d_model": "16"})

    monkeypatch.setattr(demo_module, "read_recipe", read_short)


@pytest.mark.long
@pytest.mark.parametrize("to", [pytest.param("de", marks=pytest.mark.slow), "zh"])
def test_a_short_demo_leaves_a_run_and_two_pictures(short: None, tmp_path: Path, to: str) -> None:
    said = StringIO()
    exact = demo(to, tmp_path / "run", Console(file=said, width=100))
    assert 0 <= exact <= 100
    assert {"model.safetensors", "recipe.toml", "attention.png", "positions.png"} <= {
        p.name for p in (tmp_path / "run").iterdir()
    }
    assert "60 sentences" in said.getvalue()
    assert "[data]" in said.getvalue()
    assert f'"my.{to}"' in said.getvalue()
    assert f'to = "{to}"\n' in (tmp_path / "run" / "recipe.toml").read_text()
    clear(tmp_path / "run")  # so the next demo takes its place
    assert not any((tmp_path / "run").iterdir())


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


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="other than an earlier demo"):
        clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_an_unknown_language_costs_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="German"):
        demo("German", tmp_path / "run", Console(file=StringIO()))
    assert not (tmp_path / "run").exists()


def test_shown_examples_are_varied() -> None:
    sources = ["Friday, March 5, 2026", "March 5, 2026 at 7:45 PM", "four hundred", "7:45 PM"] * 4
    shown = [pair.source for pair in varied([Pair(s, s) for s in sources])]
    assert set(shown) == {"Friday, March 5, 2026", "March 5, 2026 at 7:45 PM", "four hundred"}


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
