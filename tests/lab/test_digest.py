"""Digests: files that data name are part of them, in folders too; names that are none are not."""

import json
from pathlib import Path

import pytest

from addnorm.lab.digest import cell_digest, code_digest, files_in, sources_of
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


@pytest.mark.parametrize("how", ["folder", "pattern", "table"])
def test_sounds_and_their_texts_count(how: str, tmp_path: Path) -> None:
    for name in ("no/a.wav", "yes/b.wav", "other.txt"):
        (tmp_path / "clips" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clips" / name).write_bytes(name.encode())
    data = {"kind": "audio", "root": str(tmp_path), "sample_rate": 8000, "train": "clips"}
    files = [tmp_path / "clips/no/a.wav", tmp_path / "clips/yes/b.wav"]
    if how == "folder":
        data |= {"labels": "text_beside"}
        files = [one for file in files for one in (file, file.with_suffix(".txt"))]
        for file in files[1::2]:
            file.write_text("text")
    elif how == "pattern":
        data |= {"train": "clips/*/*.wav"}
    else:
        table = tmp_path / "clips" / "t.csv"
        table.write_text("file_name,label\nno/a.wav,no\nyes/b.wav,yes\n")
        data |= {"train": "clips/t.csv"}
        files = [table, *files]
    assert [*files_in(data)] == files


def test_imports_of_a_custom_part_count(tmp_path: Path) -> None:
    """Of its own folder, inside of functions as well, and nothing else that lies there."""
    (tmp_path / "mine.py").write_text("import torch\nimport near\n\ndef f():\n    import late\n")
    for name in ("near", "late", "other"):
        (tmp_path / f"{name}.py").write_text(f"# {name}")
    found = {file.name for file in sources_of(tmp_path / "mine.py")}
    assert found == {"mine.py", "near.py", "late.py"}
    package = tmp_path / "parts" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    (tmp_path / "parts" / "one.py").write_text("")
    assert [file.name for file in sources_of(package)] == ["__init__.py", "one.py"]
    recipe = {"data": {"train": "none"}}
    first = cell_digest(recipe, 1, KernelChoices(), [str(tmp_path / "mine.py")])
    (tmp_path / "late.py").write_text("# changed")
    assert cell_digest(recipe, 1, KernelChoices(), [str(tmp_path / "mine.py")]) != first


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


def test_the_base_of_an_adapter_counts_with_all_that_is_read_of_it(tmp_path: Path) -> None:
    base, inner, outer = (tmp_path / name for name in ("base", "inner", "outer"))
    for folder, under in ((base, None), (inner, base), (outer, inner)):
        folder.mkdir()
        name = "adapter_model" if under else "model"
        (folder / f"{name}.safetensors").write_bytes(b"weights")
        (folder / "labels.json").write_text('["a", "b"]')
        if under is not None:
            settings = {"base_model_name_or_path": str(under)}
            (folder / "adapter_config.json").write_text(json.dumps(settings))

    def digest_of(key: str) -> str:
        where = {"distillation": {"teacher": str(outer)}} if key == "teacher" else {key: str(outer)}
        return cell_digest({"train": where}, 1, KernelChoices())

    for key in ("start", "teacher"):
        before = digest_of(key)
        for file in (
            base / "model.safetensors",
            base / "labels.json",
            inner / "adapter_model.safetensors",
            outer / "labels.json",
        ):
            was = file.read_bytes()
            file.write_bytes(was + b" ")
            assert digest_of(key) != before, file
            file.write_bytes(was)
        (base / "metrics.jsonl").write_text("{}")
        (base / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
        (base / "checkpoints" / "step-1" / "model.safetensors").write_bytes(b"other")
        assert digest_of(key) == before
