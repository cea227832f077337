"""A shortened demo: it trains, evaluates, translates, plots, and keeps other files safe."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import addnorm.demo as demo_module
from addnorm.data.examples import Pair
from addnorm.demo import activation, clear, demo, varied
from addnorm.errors import InputError


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
    assert ("into Chinese" if to == "zh" else "into German") in said.getvalue()
    assert "60 sentences" in said.getvalue()
    assert "[data]" in said.getvalue()
    assert f'"my.{to}"' in said.getvalue()
    assert f'to = "{to}"\n' in (tmp_path / "run" / "recipe.toml").read_text()
    clear(tmp_path / "run")  # so the next demo takes its place
    assert not any((tmp_path / "run").iterdir())


@pytest.mark.slow
def test_without_matplotlib_the_demo_runs_and_a_line_says_what_pictures_need(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("addnorm.demo.drawing", "addnorm.inspect.pictures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    said = StringIO()
    demo("de", tmp_path / "run", Console(file=said, width=100))
    assert "Pictures need matplotlib: pip install 'addnorm[plots]'" in said.getvalue()
    assert "What next?" in said.getvalue()
    assert not [*(tmp_path / "run").glob("*.png")]


def test_the_demo_says_how_the_shell_finds_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    command = tmp_path / ".venv/bin/addnorm"
    command.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "")
    assert activation() == "\n  source .venv/bin/activate"
    monkeypatch.setenv("PATH", str(command.parent))
    assert activation() == ""


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
