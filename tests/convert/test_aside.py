import shutil
from pathlib import Path

import pytest

from addnorm.convert.aside import aside


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with aside(folder) as partial:
        (partial / "a").write_text("1")
        assert not folder.exists()
    assert (folder / "a").read_text() == "1"
    assert _names(folder.parent) == ["out"]


def test_files_replace_their_namesakes_and_those_of_an_earlier_export(tmp_path: Path) -> None:
    for name in ("a", "b.bin", "mine"):
        (tmp_path / name).write_text("old")
    with aside(tmp_path, ["*.bin"]) as partial:
        (partial / "a").write_text("new")
    assert _names(tmp_path) == ["a", "mine"]
    assert (tmp_path / "a").read_text() == "new"


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.bin").write_text("old")

    def fail() -> None:
        with aside(folder, ["*.bin"]) as partial:
            (partial / "a.bin").write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert (folder / "a.bin").read_text() == "old"
    assert _names(tmp_path) == ["out"]
    assert _names(folder) == ["a.bin"]


def test_what_a_crash_left_is_not_exported(tmp_path: Path) -> None:
    for left in (tmp_path / ".out.partial", tmp_path / "out" / ".export.partial"):
        left.mkdir(parents=True)
        (left / "stale").write_text("?")
        with aside(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
        assert _names(tmp_path / "out") == ["a"]
        shutil.rmtree(tmp_path / "out")
