"""`addnorm info`: runs and recipes on standard output."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def test_a_run_and_a_recipe(run_of: RunOf, addnorm: Command) -> None:
    code, out, err = addnorm("info", run_of("classification"))
    assert (code, err) == (0, "")
    assert "parameters" in out
    assert addnorm("info", run_of("classification").parent / "classification.toml")[0] == 0


def test_verify(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    run = Path(shutil.copytree(run_of("language"), tmp_path / "run"))
    code, out, _ = addnorm("info", run, "--verify")
    assert code == 0
    assert "files are as they were saved" in out
    checkpoint = next((run / "checkpoints").iterdir())
    (checkpoint / "facts.json").write_text("{}")
    code, _, err = addnorm("info", run, "--verify")
    assert (code, "facts.json: damaged" in err) == (2, True)


@pytest.mark.parametrize("name", ["none", "none.toml", "empty"])
def test_neither(name: str, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = addnorm("info", tmp_path / name)
    assert (code, out) == (2, "")
    assert err.startswith(f"addnorm: {tmp_path / name}: ")
