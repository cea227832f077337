"""Reading files: pipes, devices and endless files are refused at once."""

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.cli.conftest import Command, addnorm
from tests.runs.tiny import write_recipe

from addnorm.errors import InputError
from addnorm.files import cache_folder, check_regular, read_file, read_json, read_names

__all__ = ["addnorm"]  # a fixture
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 9}
GPT2["vocab_size"] = 9


def odd_file(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_and_a_device_are_rejected_as_files(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a file but a pipe or a device"):
        read_file(odd_file(tmp_path / "f", kind))


def test_a_file_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(9))
    assert read_file(tmp_path / "f", 9) == bytes(9)
    with pytest.raises(InputError, match="at most 8 bytes"):
        read_file(tmp_path / "f", 8)
    check_regular(tmp_path)  # a folder is said to be one by whoever wants a file


NUMBERS = TypeAdapter(dict[str, int])


def test_json_is_read_as_plain_values_or_as_a_type(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('{"a": 1, "b": 2}')
    assert read_json(file) == read_json(file, NUMBERS) == {"a": 1, "b": 2}
    file.write_text('["a", "b"]')
    assert read_names(file) == ("a", "b")


@pytest.mark.parametrize("adapter", [None, NUMBERS])
@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000, '{"a": 1'])
def test_json_that_is_damaged_is_named(
    text: str, adapter: TypeAdapter[Any] | None, tmp_path: Path
) -> None:
    (file := tmp_path / "f.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"f\.json: damaged: "):
        read_json(file, adapter)  # type: ignore[arg-type]
    file.unlink()
    with pytest.raises(InputError, match=r"f\.json: missing"):
        read_json(file, adapter)  # type: ignore[arg-type]


def test_json_of_another_type_is_refused_by_the_field(tmp_path: Path) -> None:
    (file := tmp_path / "f.json").write_text('{"a": "x"}')
    with pytest.raises(InputError, match=r"f\.json: damaged: a: must be an integer"):
        read_json(file, NUMBERS)
    with pytest.raises(InputError, match=r"at most 3 bytes"):
        read_json(file, most=3)


@pytest.mark.parametrize("text", ["[]", "{}", "[1]", '["a", 1]', "null"])
def test_a_list_of_names_has_names_alone(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "f.json").write_text(text)
    with pytest.raises(InputError, match=r"f\.json: damaged: not a list of names"):
        read_names(file)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["recipe", "data", "config.json", "tokenizer.json", "hf"])
def test_every_command_answers_at_once(
    name: str, kind: str, tmp_path: Path, addnorm: Command
) -> None:
    if name == "recipe":
        words = ["train", odd_file(tmp_path / "r.toml", kind)]
    elif name == "data":
        words = ["train", write_recipe(tmp_path, "language"), "--out", tmp_path / "r"]
        (tmp_path / "play.txt").unlink()
        odd_file(tmp_path / "play.txt", kind)
    else:
        run = tmp_path / "run"
        run.mkdir()
        if name == "tokenizer.json":
            model = {"kind": "decoder", "d_model": 16, "n_layers": 1, "attention": {"n_heads": 2}}
            recipe = {
                "data": {"kind": "text", "train": "x"},
                "tokenizer": {"kind": "char"},
                "model": model,
                "train": {"steps": 1},
            }
            (run / "config.json").write_text(json.dumps({"format": 1, "recipe": recipe}))
        if name == "hf":
            (run / "config.json").write_text(json.dumps(GPT2))
            odd_file(run / "model.safetensors", kind)
        else:
            odd_file(run / name, kind)
        words = ["generate", run, "--prompt", "x"]
    start = time.monotonic()
    code, out, err = addnorm(*words)
    assert time.monotonic() - start < 5
    assert (code, out) == (2, "")
    said = ("a pipe or a device", "not a file", "a link out of this folder, to /dev/zero")
    assert any(words in err for words in said)
    assert err.count("\n") == 1


@pytest.mark.long
def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, addnorm: Command) -> None:
    recipe = write_recipe(tmp_path, "language")
    (tmp_path / "play.txt.gz").write_bytes(gzip.compress(bytes(2**27)))
    code, _, err = addnorm("train", recipe, "--data.train", str(tmp_path / "play.txt.gz"))
    assert (code, "a hundred times its size" in err) == (2, True)


def test_one_folder_of_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/chosen")
    monkeypatch.delenv("ADDNORM_CACHE")
    assert cache_folder() == Path("/caches/addnorm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/addnorm")
