"""`modules.json`: where the model of a folder of sentence-transformers stands."""

import json
from pathlib import Path

import pytest

from addnorm.convert.core.modules import FILE, modules_of, transformer_folder
from addnorm.errors import InputError


def listed(folder: Path, *paths: str) -> Path:
    kinds = ("Transformer", "Pooling", "Normalize")
    named = zip(kinds, paths, strict=False)
    modules = [{"type": f"a.b.{kind}", "path": path} for kind, path in named]
    (folder / FILE).write_text(json.dumps(modules))
    return folder


def test_modules_in_their_order(tmp_path: Path) -> None:
    assert modules_of(tmp_path) == []
    found = modules_of(listed(tmp_path, "", "1_Pooling"))
    assert [(one.kind, one.type) for one in found] == [
        ("Transformer", "a.b.Transformer"),
        ("Pooling", "a.b.Pooling"),
    ]
    assert [one.path for one in found] == [tmp_path.resolve(), tmp_path.resolve() / "1_Pooling"]


def test_the_model_stands_at_the_top_or_in_its_module(tmp_path: Path) -> None:
    listed(tmp_path, "0_Transformer", "1_Pooling")
    assert transformer_folder(tmp_path) == tmp_path, "there is no model yet"
    inside = tmp_path.resolve() / "0_Transformer"
    inside.mkdir()
    (inside / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "config.json").write_text('{"__version__": "0.3.8"}')
    assert transformer_folder(tmp_path) == inside
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / FILE).write_text("damaged")
    assert transformer_folder(tmp_path) == tmp_path, "what says itself what it is is not asked"


@pytest.mark.parametrize(
    ("tree", "message"),
    [({"a": 1}, "not a list of modules"), ([{"path": "../.."}], "is outside the folder")],
)
def test_damaged_files_are_named(tree: object, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(tree))
    with pytest.raises(InputError, match=message):
        modules_of(tmp_path)
