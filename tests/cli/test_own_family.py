"""Families of checkpoints from outside: a starting file, `--import` and `check --family`."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.checking.test_checkpoints import TINY, swapped

from addnorm.convert import registry
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.families.llama import LLAMA, LLAMA_MODEL
from addnorm.convert.folder import save

pytestmark = pytest.mark.parity

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = dict(registry.REGISTERED)
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)
    sys.modules.pop("my_llama", None)


def test_commands_open_a_folder_of_a_family_that_is_imported(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert addnorm("new", "family", "my_llama.py")[0] == 0
    model = replace(LLAMA_MODEL, d_model=8, n_layers=1, max_len=16)
    save(tmp_path / "folder", ModelSpec(model=model, vocab_size=11), model.build(11), None)
    file = tmp_path / "folder" / "config.json"
    file.write_text(file.read_text().replace('"llama"', '"my_llama"'))
    code, _, err = addnorm("info", "folder")
    assert (code, "model_type = 'my_llama' is not supported" in err) == (2, True)
    code, out, err = addnorm("info", "folder", "--import", "my_llama.py")
    assert (code, err) == (0, "")
    assert "my_llama" in out


def test_a_starting_file_proves_itself(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = addnorm("new", "family", "my_llama.py")
    assert (code, err) == (0, "")
    assert "Next: addnorm check --family FOLDER --import my_llama.py" in out
    tree = TINY | {"model_type": "my_llama", "attention_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    code, out, err = addnorm("check", "--family", ".", "--import", "my_llama.py")
    assert (code, err) == (0, ""), out
    assert out.startswith("my_llama, 3 layers of width 16: equal")


def test_a_difference_ends_with_status_1(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(swapped("feedforward.gate_proj", "feedforward.up_proj"), model_type="wrong")
    monkeypatch.setitem(registry.REGISTERED, "wrong", wrong)
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "wrong"}))
    code, out, err = addnorm("check", "--family", tmp_path)
    assert (code, err) == (1, "")
    assert out.startswith("failed: wrong, 3 layers of width 16: logits in float64")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"something_new": 3}, "something_new = 3 is not supported"),
        ({"architectures": ["NoSuchModel"], "model_type": "mine"}, "has no class for model_type"),
        ({"model_type": "lama"}, "Did you mean 'llama'"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    changes: dict[str, Any],
    expected: str,
    tmp_path: Path,
    addnorm: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.REGISTERED, "mine", replace(LLAMA, model_type="mine"))
    (tmp_path / "config.json").write_text(json.dumps(TINY | changes))
    code, out, err = addnorm("check", "--family", tmp_path)
    assert (code, out) == (2, "")
    assert expected in err


def test_a_folder_that_is_missing_is_named(addnorm: Command) -> None:
    code, out, err = addnorm("check", "--family", "nowhere")
    assert (code, out) == (2, "")
    assert "--family nowhere: no such folder: without a part" in err
