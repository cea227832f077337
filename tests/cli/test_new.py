"""`addnorm new`: every template trains, is documented, and never overwrites a file."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.runs.tiny import write_recipe

Command = Callable[..., tuple[int, str, str]]

PLACES = {
    "norm": "model.norm",
    "position": "model.position",
    "score": "model.attention.score",
    "feedforward": "model.feedforward",
    "mixer": "model.attention",
    "placement": "model.residual",
    "core": "model.attention.core",
    "output": "model.attention.output",
    "pattern": "model.attention.pattern",
    "embedding": "model.embedding",
    "head": "model.head",
    "loss": "train.loss",
    "schedule": "train.schedule",
    "optimizer": "train.optimizer",
    "tokenizer": "tokenizer",
    "data": "data",
    "batching": "train.batching",
}
"""Where a part of each family stands in a recipe."""


TASK_RECIPE = """
[tokenizer]
kind = "char"

[model]
d_model = 16
n_layers = 1
attention = { n_heads = 2 }

[train]
steps = 2
batching = { kind = "tokens", tokens = 128 }
"""


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


@pytest.mark.parametrize("family", PLACES)
def test_a_starting_file_trains_and_opens_again(
    family: str, tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = f"my_{family}.py"
    code, out, err = addnorm("new", family, file)
    assert (code, err) == (0, "")
    kind = next(word for word in out.split() if word.startswith(f"my_{family}:My")).rstrip(",")
    assert f"addnorm check --part {kind}" in out
    recipe = write_recipe(tmp_path, "classification" if family == "head" else "language")
    words = ["--import", file, f"--{PLACES[family]}", kind, "--train.save_every", "100"]
    words += [] if family == "head" else ["--train.steps", "2"]
    code, _, err = addnorm("train", recipe, "--out", "run", *words)
    assert code == 0, err
    code, out, err = addnorm("info", "run")
    assert (code, err) == (0, "")
    assert kind in out
    # A new process has not imported the file.
    del sys.modules[f"my_{family}"]
    use = ["classify", "run", recipe.with_name("valid.txt")]
    use = (
        use if family == "head" else ["generate", "run", "--prompt", "1+", "--max-new-tokens", "2"]
    )
    code, out, err = addnorm(*use)
    assert (code, out) == (2, "")
    assert f"--import {file}" in err
    assert f"my_{family}" not in sys.modules
    assert addnorm(*use, "--import", file)[0] == 0


def test_a_starting_task_trains_and_predicts_by_the_commands_that_it_names(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = addnorm("new", "task", "my_task.py")
    assert code == 0
    assert "my_task:MyHeadConfig, with --import my_task.py" in out
    rows = [json.dumps({"text": "cat " * (i % 3) + "dog", "n": i % 3}) for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "my.toml").write_text(TASK_RECIPE, encoding="utf-8")
    text = (tmp_path / "my_task.py").read_text("utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line.startswith("addnorm ")]
    [_, train, predict] = [shlex.split(line)[1:] for line in lines]
    code, _, err = addnorm(*train, "--out", "runs/my")
    assert code == 0, err
    code, out, err = addnorm(*predict)
    assert (code, err) == (0, "")
    assert [json.loads(line).keys() for line in out.splitlines()] == [{"n"}] * 6
    data = ("--data.test", "rows.jsonl", "--import", "my_task.py")
    code, out, err = addnorm("evaluate", "runs/my", *data)
    assert code == 0, err
    assert json.loads(out)["mae"] >= 0
    bad = json.dumps({"text": "dog", "n": -1})
    (tmp_path / "rows.jsonl").write_text(bad, encoding="utf-8")
    code, _, err = addnorm("evaluate", "runs/my", *data)
    assert (code, "n = -1 is not a count" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*PLACES, "task"])
def test_the_check_that_a_starting_file_names_holds(
    family: str, tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, _ = addnorm("new", family, f"my_{family}.py")
    words = out.partition("Next: addnorm ")[2].splitlines()[0].split()
    code, out, err = addnorm(*words, "--no-compile", "--sample", "2")
    assert code == 0, out + err
    assert out.startswith(f"{'head' if family == 'task' else family} my_{family}:")
    assert ("definition" in out) == ("--definition" in words)


def test_nothing_is_replaced(tmp_path: Path, addnorm: Command) -> None:
    file = tmp_path / "my_norm.py"
    file.write_text("# mine\n")
    code, out, err = addnorm("new", "norm", file)
    assert (code, out) == (2, "")
    assert "exists already" in err
    assert file.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nrom", "my_norm.py"], "'nrom' is not a family of parts. Did you mean 'norm'?"),
        (["norm", "my-norm.py"], "a module is named like my_norm.py"),
        (["norm", "my_norm"], "a module is named like my_norm.py"),
        (["norm", "colorsys.py"], "'colorsys' is the name of another module"),
        (["norm", "nowhere/my_norm.py"], "No such file"),
    ],
)
def test_what_cannot_be_written(
    words: list[str],
    expected: str,
    tmp_path: Path,
    addnorm: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = addnorm("new", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert not any(tmp_path.iterdir())
