"""`addnorm plan`: a table of plans, all values as JSON, and wrong names."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.test_planning import TEXT

from addnorm.cli.fields import fields_given
from addnorm.data.batches.windows import WindowsConfig
from addnorm.runs.recipes.recipe import read_recipe

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def my(tmp_path: Path) -> Path:
    (tmp_path / "my.toml").write_text(TEXT)
    return tmp_path / "my.toml"


def test_the_best_plans_are_shown_with_a_command(addnorm: Command, my: Path) -> None:
    status, out, err = addnorm("plan", str(my), "--cards", "2", "--card", "cpu")
    assert (status, err) == (0, "")
    assert "data 2" in out
    assert "optimiser state" in out
    [line] = [line for line in out.splitlines() if "addnorm train" in line]
    words = shlex.split(line.partition("my.toml ")[2])
    assert words[-2:] == ["--processes", "2"]
    recipe = read_recipe(my, fields_given(words[:-2]))
    assert recipe.parallel.processes == 2
    batching = recipe.train.batching
    assert isinstance(batching, WindowsConfig)
    assert batching.batch_size * recipe.train.accumulate == 16


def test_a_plan_of_several_nodes_is_for_torchrun(addnorm: Command, my: Path) -> None:
    words = ["--cards", "4", "--card", "cpu", "--per-node", "2", "--parallel.data", "2"]
    _, out, _ = addnorm("plan", my, *words, "--parallel.shard", "true")
    [line] = [line for line in out.splitlines() if line.startswith("The first plan: ")]
    assert "torchrun --nnodes 2 --nproc-per-node 2 -m addnorm train" in line
    assert "--parallel" in line


def test_every_plan_is_a_line_of_json(addnorm: Command, my: Path) -> None:
    status, out, _ = addnorm("plan", str(my), "--cards", "4", "--card", "h100", "--json")
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) > 10
    for row in rows:
        assert row["memory"]["total"] > 0
        assert all(exchange["link"] for exchange in row["exchanges"])
        assert row["splits"] == (row["problem"] is None)
        assert not row["train"]  # over processes it runs on CPUs so far
    assert rows[0]["why"] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--card", "h10"], "card 'h10' does not exist. Did you mean 'h100'?"),
        (["--card", "h100", "--link", "nvlin"], "Did you mean 'nvlink'?"),
        (["--card", "h100", "--link", "ib400,ib400,ib400"], "one within a node and one between"),
        (["--card", '{ card = "h100", memry = 3 }'], "memry is not a field. Did you mean 'memory'"),
        (["--card", '{ card = "h100", memory = -3 }'], "memory = -3 is not a positive number"),
        (["--card", '{ card = "h100", memory = nan }'], "memory = nan is not a positive number"),
        (["--card", "{ memory = 3 }"], "give the card that it is like"),
        (["--card", "{ memory"], "not a table of TOML"),
        (["--card", "h100", "--train.stepz", "3"], "train.stepz is not a field."),
    ],
)
def test_wrong_words_are_named(addnorm: Command, my: Path, words: list[str], message: str) -> None:
    status, _, err = addnorm("plan", str(my), "--cards", "2", *words)
    assert status == 2
    assert message in err
