"""Speed runs: records that are valid recipes, times of whole processes, and honest tables."""

import json
import tomllib
from importlib.resources import as_file, files
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.small import recipe_file

from addnorm.errors import InputError
from addnorm.lab import speedrun as speedruns
from addnorm.lab.records import BOARDS, Board, boards_of, record_file
from addnorm.lab.speedrun import (
    Time,
    contenders,
    imported,
    speedrun,
    times_table,
)
from addnorm.runs.recipes.recipe import read_recipe


def record(board: str) -> str:
    return record_file(board).read_text("utf-8")


@pytest.mark.parametrize("board", BOARDS)
def test_a_record_and_the_one_before_are_recipes_on_the_same_data(board: str) -> None:
    recipes = []
    for ending in ("", "-before"):
        name = f"{board}{ending}.toml"
        with as_file(files("addnorm.lab") / "records" / name) as file:
            recipes.append(read_recipe(file, {}))
    assert recipes[0].data == recipes[1].data
    assert recipes[0] != recipes[1]
    assert record(board).startswith("# ")


def test_a_name_may_stand_for_several_boards() -> None:
    assert boards_of("shakespeare") == ["shakespeare-1.88", "shakespeare-1.58"]
    assert boards_of("digits") == boards_of("digits-99") == ["digits-99"]
    with pytest.raises(InputError, match="Did you mean 'multi30k'"):
        boards_of("multi30")


def test_a_target_is_reached_from_the_right_side() -> None:
    assert BOARDS["shakespeare-1.88"].reached(1.879)
    assert not BOARDS["shakespeare-1.88"].reached(1.881)
    assert BOARDS["digits-99"].reached(99.0)
    assert not BOARDS["digits-99"].reached(98.99)


def test_a_recipe_on_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\[data\] has to be that of the board digits-99"):
        contenders("digits-99", recipe_file(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_new_recipe_runs_in_turn_with_the_record(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(record("shakespeare-1.88").replace("steps = 300", "steps = 250"), "utf-8")
    found = contenders("shakespeare-1.88", mine, tmp_path / "out")
    assert [*found] == ["mine (yours)", "record"]
    assert found["mine (yours)"].read_text("utf-8") == mine.read_text("utf-8")
    assert [*contenders("shakespeare-1.88", None, tmp_path)] == ["record", "the record before"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('kind = "char"', 'kind = "word"', r"\[tokenizer\] has to be that of the board"),
        ("valid_fraction = 0.1", "valid_fraction = 0.01", r"\[data\] has to be that"),
    ],
)
def test_nobody_wins_by_other_rules(old: str, new: str, expected: str, tmp_path: Path) -> None:
    mine = tmp_path / "record.toml"
    mine.write_text(record("shakespeare-1.88").replace(old, new), "utf-8")
    with pytest.raises(InputError, match=expected):
        contenders("shakespeare-1.88", mine, tmp_path / "out")


def test_a_speed_run_begins_from_nothing(tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    trained.mkdir()
    settings = {"recipe": tomllib.loads(record("digits-99"))}
    (trained / "config.json").write_text(json.dumps(settings), "utf-8")
    mine = tmp_path / "mine.toml"
    text = record("digits-99").replace("[train]", f'[train]\nstart = "{trained}"')
    mine.write_text(text, "utf-8")
    with pytest.raises(InputError, match="starts without trained weights"):
        contenders("digits-99", mine, tmp_path / "out")


def test_a_recipe_called_record_is_timed_all_the_same(tmp_path: Path) -> None:
    mine = tmp_path / "record.toml"
    mine.write_text(record("shakespeare-1.88").replace("steps = 330", "steps = 7"), "utf-8")
    found = contenders("shakespeare-1.88", mine, tmp_path / "out")
    assert len({*found.values()}) == 2
    assert "steps = 7" in found["record (yours)"].read_text("utf-8")


def shown(table: object) -> str:
    console = Console(width=120, record=True)
    console.print(table)
    return console.export_text()


def test_the_table_shows_which_runs_reached_the_target() -> None:
    found = [
        Time(recipe="mine", seed=seed, seconds=10.0 * seed, figure=figure)
        for seed, figure in ((1, 1.87), (2, 1.89), (3, 1.80))
    ]
    text = shown(times_table("shakespeare-1.88", found))
    for piece in ("loss ≤ 1.88", "20.0", "10.0 20.0 30.0", "1.853", "2 of 3"):
        assert piece in text


@pytest.mark.slow
def test_recipes_are_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = recipe_file(tmp_path)
    board = Board(split="valid", metric="loss", target=100.0, lower_is_better=True)
    monkeypatch.setattr(speedruns, "BOARDS", {"small": board})
    monkeypatch.setattr(speedruns, "record_file", lambda _, before=False: small)
    told = Console(file=StringIO(), width=200)
    table = speedrun("small", None, 2, tmp_path, tmp_path / "out", told)
    assert "2 of 2" in shown(table)
    [kept] = (tmp_path / "out").glob("*/times.json")
    runs = json.loads(kept.read_text("utf-8"))["runs"]
    assert [(one["recipe"], one["seed"]) for one in runs] == [
        ("record", 1), ("the record before", 1), ("record", 2), ("the record before", 2)
    ]  # fmt: skip
    assert all(one["seconds"] > 0 for one in runs)
    assert runs[0]["figure"] == runs[1]["figure"] != runs[2]["figure"]


@pytest.mark.long
def test_a_run_that_fails_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = recipe_file(tmp_path)
    small.write_text(small.read_text("utf-8").replace("lr = 0.01", "lr = -1"), "utf-8")
    board = Board(split="valid", metric="loss", target=1.0)
    monkeypatch.setattr(speedruns, "BOARDS", {"small": board})
    monkeypatch.setattr(speedruns, "record_file", lambda _, before=False: small)
    told = Console(file=StringIO())
    with pytest.raises(InputError, match="lr"):
        speedrun("small", None, 1, tmp_path, tmp_path / "out", told)


def test_a_recipe_brings_the_parts_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("SCALE = 2\n")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('import = ["mine.py"]\n' + record("shakespeare-1.88"), "utf-8")
    assert [file.name for file in imported(recipe)] == ["mine.py"]
    found = contenders("shakespeare-1.88", recipe, tmp_path / "out")
    assert (found["mine (yours)"].parent / "mine.py").read_text() == "SCALE = 2\n"
