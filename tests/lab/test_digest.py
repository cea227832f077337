"""Digests: files that data name are part of them, in folders too; names that are none are not."""

from pathlib import Path

import pytest

from addnorm.lab.digest import cell_digest, code_digest, files_in
from addnorm.nn.choices import KernelChoices


def test_files_are_found_where_training_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    a, b, c = (tmp_path / name for name in ("a.txt", "b.txt", "inner/c.txt"))
    for file in (a, b, c):
        file.write_text(file.name)
    names = {"kind": "text", "train": ["a.txt", "no file", ""], "more": {"valid": "inner/c.txt"}}
    assert [*files_in({**names, "root": str(tmp_path)})] == [a, c]
    assert [*files_in(names)] == []
    monkeypatch.setenv("ADDNORM_DATA", str(tmp_path))
    assert [*files_in(names)] == [a, c]
    assert [*files_in({"train": str(b)})] == [b]
    assert [*files_in({})] == [*files_in({"n": 3, "text": "two\nlines"})] == []


def test_a_folder_counts_only_where_it_is_data(tmp_path: Path) -> None:
    """A root, or a word that is also a folder's name, is none of its files."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a")
    root = {"root": str(tmp_path)}
    assert [*files_in({"kind": "text", "label": "text", **root})] == []
    assert [*files_in({"path": "text", **root})] == [tmp_path / "text" / "a.txt"]


def test_contents_count_not_times(tmp_path: Path) -> None:
    file, start = tmp_path / "a.txt", tmp_path / "start"
    start.mkdir()
    (start / "model.safetensors").write_bytes(b"one")
    file.write_text("one")
    recipe = {"data": {"train": str(file)}, "train": {"start": str(start)}}
    before = cell_digest(recipe, 1, KernelChoices())
    file.touch()
    assert cell_digest(recipe, 1, KernelChoices()) == before
    file.write_text("two")
    second = cell_digest(recipe, 1, KernelChoices())
    (start / "model.safetensors").write_bytes(b"two")
    third = cell_digest(recipe, 1, KernelChoices())
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1")
    fourth = cell_digest(recipe, 1, KernelChoices(), [str(mine)])
    mine.write_text("x = 2")
    fifth = cell_digest(recipe, 1, KernelChoices(), [str(mine)])
    assert len({before, second, third, fourth, fifth}) == 5
    assert code_digest() == code_digest()
