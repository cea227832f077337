"""No command is silent while it works: it names what it does where that takes long."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from tests.cli.conftest import Command

from addnorm import long_work
from addnorm.cli.main import COMMANDS

OPENS = {
    "classify": "classification lines.txt",
    "embed": "classification lines.txt --out vectors.npy",
    "evaluate": "language --split valid",
    "generate": "language --prompt To",
}
"""Commands and their arguments; the first word is the task of a run."""

WORKS = {
    "check": "--sample 2 --only decoder/*",
    "compare": "language copy",
    "export": "language exported --to onnx",
    "info": "language",
    "look": "language To --out look.png",
    "plan": "recipe.toml --cards 2 --card cpu --model.vocab_size 30",
    "prune": "language --feed-forward 0.5 --out pruned",
    "quantize": "language --to int8 --out int8",
    "swap": "language --set norm=rmsnorm --out swapped",
}

OTHERS = {
    "chat": "opens as the others do, and waits for a person",
    "fill": "opens as the others do",
    "forecast": "opens as the others do",
    "merge": "opens as the others do",
    "predict": "opens as the others do",
    "ablate": "has a bar of cells: tests/lab",
    "lab": "has a bar of cells: tests/lab",
    "bench": "needs minutes: the name of a benchmark",
    "calibrate": "changes what other tests compute with",
    "demo": "trains",
    "distill": "trains",
    "train": "tests/training/test_progress.py",
    "tokenize": "tests/training/test_progress.py",
    "serve": "tests/serve/http/test_server.py",
    "new": "writes a small file",
    "parts": "lists",
    "plot": "draws a small file",
    "schema": "lists",
}


TASKS = ("classification", "language")


def test_all_commands_are_here() -> None:
    assert {*OPENS, *WORKS, *OTHERS} == {*COMMANDS}


@pytest.mark.long
@pytest.mark.parametrize("command", [*OPENS, *WORKS])
def test_work_is_named(
    command: str,
    addnorm: Command,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (OPENS | WORKS)[command].split()
    words = [str(run_of(word)) if word in TASKS else word for word in words]
    monkeypatch.chdir(tmp_path)
    if "copy" in words:
        copytree(words[0], "copy")
    Path("lines.txt").write_text("a fine day\n")
    Path("recipe.toml").write_text(
        '[data]\nkind = "text"\ntrain = "my.txt"\n[tokenizer]\nkind = "char"\n'
        '[model]\nkind = "decoder"\nd_model = 16\nn_layers = 1\n[train]\nsteps = 4\n'
    )
    monkeypatch.setattr(long_work, "PATIENCE", 1e-4)
    code, _, err = addnorm(command, *words)
    assert code == 0, err
    named = {line.split(":")[0] for line in err.splitlines() if line.endswith(" s so far")}
    assert named, err
    if command in OPENS:
        assert "opening the model" in named
    else:
        assert named - {"opening the model", "reading the data"}, named
