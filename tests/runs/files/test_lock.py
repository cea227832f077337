"""Only one process at a time can write to a run folder; dead processes hold no lock."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm.errors import InputError
from addnorm.runs.files.folder import read_settings
from addnorm.runs.files.lock import LOCK, in_use, locked
from addnorm.runs.files.resuming import resumed_recipe

HOLD = """
import sys, time
from pathlib import Path
from addnorm.runs.files.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_living_are_named_and_the_dead_hold_nothing(tmp_path: Path) -> None:
    other = holder(tmp_path / "r")
    try:
        with (
            pytest.raises(InputError, match=f"process {other.pid} on {socket.gethostname()}"),
            locked(tmp_path / "r"),
        ):
            pass
        assert (tmp_path / "r" / LOCK).exists()  # a refusal takes nothing from the holder
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    assert (tmp_path / "r" / LOCK).exists()  # stale
    with locked(tmp_path / "r"):
        assert str(os.getpid()) in (tmp_path / "r" / LOCK).read_text()


def test_a_process_may_take_it_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "r"
    with locked(folder):
        with locked(folder):
            pass
        assert (folder / LOCK).exists()
    assert not folder.exists()
    with locked(folder):
        (folder / "journal").touch()
    assert [file.name for file in folder.iterdir()] == ["journal"]


def test_a_file_in_place_of_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "r").touch()
    with pytest.raises(InputError, match="is a file"), locked(tmp_path / "r"):
        pass


def test_a_run_that_is_only_starting_is_named_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    other = holder(folder)
    try:
        for use in (read_settings, lambda folder: resumed_recipe(folder, {})):
            with pytest.raises(InputError, match=f"process {other.pid} on .* is starting"):
                use(folder)
    finally:
        other.kill()
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    assert (folder / LOCK).exists()
    assert in_use(folder) is None
    with pytest.raises(InputError, match="not a run folder"):
        read_settings(folder)
