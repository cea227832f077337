"""`--device` and `--dtype`: equal results in float64, and errors for unavailable ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from addnorm.cli.where import ANYWHERE, Where

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def test_by_default_anywhere_and_as_stored(run_of: RunOf) -> None:
    run = ANYWHERE.open(run_of("language"))
    assert run.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert next(run.model.parameters()).dtype == torch.float32
    run = Where(device="cpu", dtype="float64").open(run_of("language"))
    assert next(run.model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("name", ["generate", "classify", "evaluate"])
def test_every_command_that_runs_a_model_has_them(
    name: str, run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    (tmp_path / "in.txt").write_text("a red cat\n")
    run = run_of({"generate": "translation", "classify": "classification"}.get(name, "language"))
    words = [name, run] + ([tmp_path / "in.txt"] if name != "evaluate" else ["--split", "valid"])
    code, plain, _ = addnorm(*words, "--device", "cpu")
    assert code == 0
    code, wide, _ = addnorm(*words, "--device", "cpu", "--dtype", "float64")
    assert code == 0
    if name == "evaluate":
        assert json.loads(wide)["loss"] == pytest.approx(json.loads(plain)["loss"], rel=1e-5)
        assert json.loads(wide)["loss"] != json.loads(plain)["loss"]
    else:
        assert wide == plain
    code, out, err = addnorm(*words, "--device", "cudda")
    assert (code, out) == (2, "")
    assert "--device cudda is not here. Did you mean 'cuda'?" in err
    code, _, err = addnorm(*words, "--dtype", "float31")
    assert (code, "Did you mean 'float32'?" in err) == (2, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is here")
def test_a_device_that_is_not_here(run_of: RunOf, addnorm: Command) -> None:
    for device in ("cuda", "cuda:1", "mps"):
        code, _, err = addnorm("evaluate", run_of("language"), "--device", device)
        assert code == 2
        assert err.endswith(f"--device {device} is not here. torch sees: cpu.\n")
