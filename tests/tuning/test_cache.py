"""Kept measurements: whatever is in the place of a file, nothing fails and nothing hangs."""

import os
from pathlib import Path

import pytest

from addnorm.tuning import cache
from addnorm.tuning.cache import HOUR, keep, kept_file, read_kept
from addnorm.tuning.calibration import Machine

HERE = Machine(processor="a 486", threads=1, torch="2", addnorm="1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that holds something."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    found = kept_file("a 486,", "1 threads")
    assert found == tmp_path / "kernels" / "a-486-1-threads.json"
    keep(found, HERE)
    return found


def test_it_is_found_and_known_to_be_recent(file: Path) -> None:
    assert read_kept(file, Machine) == (HERE, True)
    written = file.stat().st_mtime
    for age in (HOUR + 1, -HOUR):
        os.utime(file, (written - age, written - age))
        assert read_kept(file, Machine) == (HERE, False)
    assert [one.name for one in file.parent.iterdir()] == [file.name]


DAMAGE = [b"", b"{", b"[]", b"\xff", b"[" * 60_000, b"[" * 200_000, b'{"processor": "a 486"}']


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_what_is_damaged_is_not_there(damage: bytes, file: Path) -> None:
    file.write_bytes(damage)
    assert read_kept(file, Machine) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_is_not_waited_for(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    assert read_kept(file, Machine) is None
    keep(file, HERE)
    assert read_kept(file, Machine) == (HERE, True)


def test_where_there_is_no_place_nothing_is_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "cache_folder", no_home)
    assert kept_file("a 486") is None
    keep(None, HERE)
    assert read_kept(None, Machine) is None
    file.unlink()
    file.mkdir()
    (file / "full").touch()
    keep(file, HERE)
    assert read_kept(file, Machine) is None
