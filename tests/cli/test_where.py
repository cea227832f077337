"""Equal results in float64, errors for unavailable devices, and custom parts on every command."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.runs.own_parts import forgotten, own_recipe, write_parts

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
    assert "--device cudda is not available. Did you mean 'cuda'?" in err
    code, _, err = addnorm(*words, "--dtype", "float31")
    assert (code, "Did you mean 'float32'?" in err) == (2, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is here")
def test_a_device_that_is_not_here(run_of: RunOf, addnorm: Command) -> None:
    for device in ("cuda", "cuda:1", "mps"):
        code, _, err = addnorm("evaluate", run_of("language"), "--device", device)
        assert code == 2
        assert err.endswith(f"--device {device} is not available. torch sees: cpu.\n")


NORM = '{ kind = "own_norms:ScaledConfig", size = 0.5 }'


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    with forgotten("own_norms"):
        yield


def test_a_run_with_own_parts_from_beginning_to_end(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parts(tmp_path)
    recipe = own_recipe(tmp_path, "model.norm", NORM)
    code, _, err = addnorm("train", recipe, "--out", "run")
    assert code == 2
    assert "--import own_norms.py" in err
    given = ["--import", "own_norms.py"]
    loss = ["--train.loss", "own_norms:LossConfig", "--train.steps", "2"]
    code, _, err = addnorm("train", recipe, "--out", "run", *given, *loss)
    assert code == 0, err
    with forgotten("own_norms"):
        commands = [
            ["evaluate", "run"],
            ["generate", "run", "--prompt", "To", "--max-new-tokens", "2"],
            ["info", "run"],
            ["swap", "run", "--set", "norm=rmsnorm", "--out", "swapped"],
            ["export", "run", "out", "--to", "hf"],
        ]
        for command in commands:
            code, out, err = addnorm(*command)
            assert (code, out) == (2, "")
            assert err.count("\n") == 1
            assert f"on the command line add `{' '.join(given)}`" in err
    code, out, err = addnorm("info", "run", *given)
    assert (code, err) == (0, "")
    assert "own_norms:ScaledConfig" in out
    assert "size = 0.5" in out
    assert "own_norms:LossConfig" in out
    code, out, err = addnorm("evaluate", "run", *given)
    assert code == 0, err
    assert json.loads(out)["loss"] > 0
    code, _, err = addnorm("swap", "run", "--set", "norm=rmsnorm", "--out", "swapped", *given)
    assert code == 0, err
    code, _, err = addnorm("swap", "run", "--set", f"norm={NORM}", "--out", "same", *given)
    assert code == 0, err
    stored = json.loads((tmp_path / "same" / "config.json").read_text())
    assert stored["recipe"]["model"]["norm"]["kind"] == "own_norms:ScaledConfig"
    assert stored["imports"] == {"own_norms": "own_norms.py"}
    assert (
        json.loads((tmp_path / "swapped" / "config.json").read_text())["recipe"]["model"]["norm"][
            "kind"
        ]
        == "rmsnorm"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--import", "own_norm.py"], "Did you mean 'own_norms.py'?"),
        (["--import", "own_nothing"], "no such module"),
        (["--imports", "own_norms.py"], "Did you mean '--import'?"),
    ],
)
def test_what_cannot_be_imported(
    words: list[str],
    expected: str,
    tmp_path: Path,
    addnorm: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parts(tmp_path)
    code, out, err = addnorm("train", own_recipe(tmp_path, "model.norm", NORM), *words)
    assert (code, out) == (2, "")
    assert expected in err


def test_a_word_is_the_part_with_its_defaults(tmp_path: Path, addnorm: Command) -> None:
    recipe = own_recipe(tmp_path, "model.norm", '"rmsnorm"')
    words = ["--model.position", "alibi", "--train.batching", "windows", "--tokenizer", "bpe"]
    words += ["--eval.decoding", "greedy", "--train.optimizer", "adamw", "--train.steps", "1"]
    words += ["--model.norm.eps", "1e-3", "--train.batching.seq_len", "16"]
    code, _, err = addnorm("train", recipe, "--out", tmp_path / "run", *words)
    assert code == 0, err
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert stored["model"]["norm"] == {"kind": "rmsnorm", "eps": 1e-3, "gain": "learned"}
    assert stored["model"]["position"] == {"kind": "alibi"}
    assert stored["tokenizer"]["kind"] == "bpe"
    assert stored["eval"]["decoding"]["kind"] == "greedy"
    # A start keeps what is not written; a word replaces the part by its defaults.
    start = own_recipe(tmp_path, "model.norm", '"rmsnorm"')
    text = start.read_text().replace('[tokenizer]\nkind = "char"\n', "")
    start.write_text(text.replace("[train]\n", f'[train]\nstart = "{tmp_path / "run"}"\n'))
    code, _, err = addnorm("train", start, "--out", tmp_path / "next", "--train.steps", "1")
    assert code == 0, err
    stored = json.loads((tmp_path / "next" / "config.json").read_text())["recipe"]
    assert stored["model"]["norm"]["eps"] != 1e-3
    assert stored["model"]["position"] == {"kind": "alibi"}
