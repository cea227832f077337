"""Atomic writes: complete or not at all, synced before the rename, no leftovers."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from addnorm.atomic import (
    STORED_AS,
    atomic_directory,
    atomic_file,
    atomic_write,
    check_writable,
    make_folder,
    remove_partial,
    write_tensors,
)
from addnorm.errors import InputError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with atomic_directory(folder) as partial:
        (partial / "a").write_text("1")
        assert not folder.exists()
    assert (folder / "a").read_text() == "1"
    assert _names(folder.parent) == ["out"]


def test_files_replace_their_namesakes_and_those_of_an_earlier_export(tmp_path: Path) -> None:
    for name in ("a", "b.bin", "mine"):
        (tmp_path / name).write_text("old")
    with atomic_directory(tmp_path, ["*.bin"]) as partial:
        (partial / "a").write_text("new")
    assert _names(tmp_path) == ["a", "mine"]
    assert (tmp_path / "a").read_text() == "new"


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.bin").write_text("old")

    def fail() -> None:
        with atomic_directory(folder, ["*.bin"]) as partial:
            (partial / "a.bin").write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert (folder / "a.bin").read_text() == "old"
    assert _names(tmp_path) == ["out"]
    assert _names(folder) == ["a.bin"]


@pytest.mark.parametrize("there", [False, True])
def test_messages_name_the_folder_that_was_asked_for(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
    with pytest.raises(InputError) as caught, atomic_directory(folder) as partial:
        raise InputError(f"{partial / 'config.json'}: cannot be saved")
    assert str(caught.value) == f"{folder / 'config.json'}: cannot be saved"


def test_what_a_crash_left_is_not_exported(tmp_path: Path) -> None:
    for left in (tmp_path / ".out.partial", tmp_path / "out" / ".partial"):
        left.mkdir(parents=True)
        (left / "stale").write_text("?")
        with atomic_directory(tmp_path / "out") as partial:
            (partial / "a").write_text("1")
        assert _names(tmp_path / "out") == ["a"]
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("data", ["☂", b"\x00\xff"])
def test_a_file_is_replaced_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str | bytes
) -> None:
    file = tmp_path / "config.json"
    atomic_write(file, data)
    before = file.read_bytes()
    assert before == (data.encode("utf-8") if isinstance(data, str) else data)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        atomic_write(file, "{}")
    assert file.read_bytes() == before
    assert _names(tmp_path) == ["config.json"]


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_file_is_on_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle)))
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (done.append("replace"), replace(path, to))[1]
    )
    file = tmp_path / "graph.pt2"
    with atomic_file(file, concurrent=concurrent) as partial:
        partial.write_text("1")
        assert not file.exists()
    assert done == ["sync", "replace", "sync"]
    assert _names(tmp_path) == ["graph.pt2"]


def test_processes_that_write_one_file_have_a_path_each(tmp_path: Path) -> None:
    file = tmp_path / "graph.pt2"
    with (
        atomic_file(file, concurrent=True) as one,
        atomic_file(file, concurrent=True) as other,
    ):
        assert one != other
        assert one.suffix == other.suffix == ".pt2"
        one.write_text("one")
        other.write_text("other")
    assert file.read_text() == "one", "the last to finish"


def test_a_failed_file_leaves_nothing(tmp_path: Path) -> None:
    def fail(concurrent: bool) -> None:
        with atomic_file(tmp_path / "a", concurrent=concurrent) as partial:
            partial.write_text("half")
            raise OSError("no space")

    for concurrent in (False, True):
        with pytest.raises(OSError, match="no space"):
            fail(concurrent)
    assert _names(tmp_path) == []


def test_files_and_folders_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "folder").mkdir()
    atomic_write(tmp_path / "file", "")
    with atomic_directory(tmp_path / "new") as partial:
        (partial / "a").write_text("")
    with atomic_file(tmp_path / "shared", concurrent=True) as path:
        path.write_text("")
    mode = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in _names(tmp_path)}
    assert mode["file"] == mode["shared"] == mode["plain"]
    assert mode["new"] == mode["folder"]


def test_a_folder_as_a_whole_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "old").write_text("old")
    with atomic_directory(folder, whole=True) as partial:
        (partial / "a").write_text("1")
        assert _names(folder) == ["old"]
    assert _names(folder) == ["a"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_folder_is_never_removed_before_another_is_there(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any change of a name or the removal, it leaves the old or the new one whole."""
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "b").write_text("old")
    calls = {"rename": Path.rename, "rmtree": shutil.rmtree}
    done: list[str] = []

    def killed(name: str) -> Callable[..., object]:
        def call(path: Path, *more: object, **options: object) -> object:
            if path.exists():
                if len(done) >= at:
                    raise SystemExit  # and nothing after it happens
                done.append(name)
            return calls[name](path, *more, **options)

        return call

    def write() -> None:
        with atomic_directory(folder, whole=True) as partial:
            (partial / "a").write_text("new")
            (partial / "b").write_text("new")
            monkeypatch.setattr(Path, "rename", killed("rename"))
            monkeypatch.setattr(shutil, "rmtree", killed("rmtree"))

    with pytest.raises(SystemExit):
        write()
    monkeypatch.undo()
    assert done == ["rename", "rename"][:at]
    left = [[(one / name).read_text() for name in "ab"] for one in tmp_path.glob("step-1*")]
    assert ["old", "old"] in left or ["new", "new"] in left
    with atomic_directory(folder, whole=True) as partial:
        (partial / "a").write_text("newer")
    assert _names(tmp_path) == ["step-1"]
    assert _names(folder) == ["a"]


def test_an_index_never_lists_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "index", "stale"):
        (tmp_path / name).write_text("old")
    seen: list[tuple[str, bool]] = []
    replace = Path.replace

    def watched(path: Path, to: Path) -> Path:
        seen.append((to.name, (tmp_path / "index").exists()))
        return replace(path, to)

    monkeypatch.setattr(Path, "replace", watched)
    with atomic_directory(tmp_path, ["stale"], index="index") as partial:
        for name in ("a", "index", "z"):
            (partial / name).write_text("new")
    assert seen == [("a", False), ("z", False), ("index", False)]
    assert _names(tmp_path) == ["a", "b", "index", "z"]


def test_leftovers_of_a_crash_are_removed_by_pattern(tmp_path: Path) -> None:
    for name in (".step-1.partial", ".step-2.partial", ".other.partial", "step-3"):
        (tmp_path / name / "deep").mkdir(parents=True)
    remove_partial(tmp_path, "step-*")
    assert _names(tmp_path) == [".other.partial", "step-3"]


def test_numpys_message_for_a_full_disk_becomes_the_usual_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, atomic_file(tmp_path / "x"):
        raise OSError("9600 requested and 312 written")
    assert (caught.value.errno, caught.value.filename) == (ENOSPC, str(tmp_path / "x"))
    with pytest.raises(OSError, match=r"^something else$"), atomic_file(tmp_path / "x"):
        raise OSError("something else")


def test_an_error_of_the_disk_names_the_path(tmp_path: Path) -> None:
    """Writing to an open file that finds no space names none itself."""
    for writes in (atomic_file, atomic_directory):
        for at in (None, "inside"):
            with pytest.raises(OSError, match="No space") as caught, writes(tmp_path / "x") as path:
                raise OSError(ENOSPC, "No space", None if at is None else str(path / at))
            assert caught.value.filename == str(tmp_path / "x")


def test_an_error_of_making_the_folder_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught, atomic_directory(tmp_path / "file" / "x"):
        pass
    assert caught.value.filename == str(tmp_path / "file" / "x")
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        make_folder(tmp_path / "file")


def test_a_file_of_tensors_has_the_bytes_of_safetensors_itself(tmp_path: Path) -> None:
    tensors = {
        f"{place}{name}": torch.arange(6).reshape(shape).to(getattr(torch, name))
        for place, shape in {"z": (2, 3), "a": (6, 1), 'é"': (3, 2)}.items()
        for name in STORED_AS
    }
    tensors["one"] = torch.tensor(2.5)
    tensors["turned"] = torch.randn(4, 3).T
    tensors["none"] = torch.zeros(0, 3)
    for metadata in (None, {"format": "pt"}):
        write_tensors(tmp_path / "ours", tensors, metadata)
        save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "its", metadata)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "its").read_bytes()
    write_tensors(tmp_path / "empty", {})
    save_file({}, tmp_path / "its")
    assert (tmp_path / "empty").read_bytes() == (tmp_path / "its").read_bytes()


@pytest.mark.parametrize("place", ["out", "deep/out", "out/"])
def test_where_nothing_can_be_written_is_known_before_the_work(tmp_path: Path, place: str) -> None:
    check_writable(tmp_path / place)
    assert _names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"nothing can be written in .*file: not a directory"):
        check_writable(tmp_path / "file" / place)
