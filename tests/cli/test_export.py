"""`addnorm export`, and every command on a Hugging Face folder."""

from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.disks import fill
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import train_tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("run"), "language", **GPT2_PARTS)


def test_out_and_in_again(run: Path, tmp_path: Path, addnorm: Command) -> None:
    out = tmp_path / "hf"
    code, said, err = addnorm("export", run, out)
    assert (code, said) == (0, "")
    assert "a gpt2 folder" in err
    options = ("--prompt", "To be", "--beams", 1, "--max-new-tokens", 9)
    assert addnorm("generate", run, *options) == addnorm("generate", out, *options)
    code, said, _ = addnorm("info", out)
    assert code == 0
    assert "gpt2" in said
    assert "start" not in said
    (tmp_path / "lines.txt").write_text("one\n")
    code, _, err = addnorm("classify", out, tmp_path / "lines.txt")
    assert code == 2
    assert "does not classify texts" in err


def test_mistakes_are_one_message(run: Path, tmp_path: Path, addnorm: Command) -> None:
    code, _, err = addnorm("export", run, tmp_path / "x", "--family", "gtp2")
    assert code == 2
    assert "Did you mean 'gpt2'?" in err
    for words, name in (((run,), "OUT"), (("--out", run), "--out")):
        code, _, err = addnorm("export", run, *words)
        assert (code, err.endswith(f"its own model: give another {name}\n")) == (2, True)
    code, _, err = addnorm("export", tmp_path / "nothing", tmp_path / "x")
    assert code == 2
    assert err.startswith(f"addnorm: {tmp_path / 'nothing'}: no such folder")
    (tmp_path / "my.txt").write_text("years of work")
    for to in ("web", "gguf", "hf"):
        code, _, err = addnorm("export", run, tmp_path / "my.txt", "--to", to)
        assert (code, err.count("\n")) == (2, 1), err
        assert (tmp_path / "my.txt").read_text() == "years of work"
    code, _, err = addnorm("export", run, tmp_path / "x", "--to", "tf")
    assert code == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.long
@pytest.mark.parametrize("to", ["hf", "ctranslate2", "onnx"])
def test_a_full_disk_is_one_message_and_leaves_nothing(
    to: str, run: Path, disk: Path, addnorm: Command
) -> None:
    pytest.importorskip({"hf": "safetensors"}.get(to, to))
    fill(disk, left=8192)
    code, out, err = addnorm("export", run, disk / "out", "--to", to)
    assert (code, out) == (2, "")
    assert "No space left on device" in err
    assert err.count("\n") == 1
    assert [file.name for file in disk.iterdir()] == ["ballast"]
