"""Processes that allocate: both settings work, end with the block, and what is missing is known."""

import subprocess
import sys
from pathlib import Path

import pytest

from addnorm import machine
from addnorm.tuning import pages
from addnorm.tuning.pages import NoAnswerError, allocating

of_glibc = pytest.mark.skipif(not machine.pages_can_be_kept(), reason="no mallopt here")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes that were started."""
    found: list[subprocess.Popen] = []
    start = subprocess.Popen

    def noted(*args: object, **options: object) -> subprocess.Popen:
        found.append(start(*args, **options))
        return found[-1]

    monkeypatch.setattr(pages.subprocess, "Popen", noted)
    return found


def faults(process: subprocess.Popen) -> int:
    """The page faults of a process so far."""
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[7])


@of_glibc
@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults by /proc")
def test_one_returns_its_pages_and_the_other_keeps_them(started: list[subprocess.Popen]) -> None:
    with allocating() as works:
        found: dict[str, int] = {}
        for process, (name, work) in zip(started, works.items(), strict=True):
            work()
            before = faults(process)
            work()
            found[name] = faults(process) - before
    assert [*found] == ["returned", "kept"]
    assert found["kept"] < 100
    assert found["returned"] > 100
    assert all(process.poll() is not None for process in started)


@of_glibc
def test_no_answer_is_an_error(
    started: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    with allocating() as works:
        started[0].kill()
        started[0].wait()
        with pytest.raises(NoAnswerError):
            works["returned"]()
        works["kept"]()
    monkeypatch.setattr(pages, "SECONDS", 0.05)
    monkeypatch.setattr(machine, "__file__", "/dev/stdin")  # waits for more of its script
    with allocating() as works, pytest.raises(NoAnswerError):
        works["returned"]()


def test_where_nothing_can_be_measured_there_are_no_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError

    with monkeypatch.context() as patch:
        patch.setattr(pages.subprocess, "Popen", fails)
        with allocating() as works:
            assert not works
    for target, name, value in (
        (machine, "_mallopt", lambda: None),
        (sys, "executable", ""),
        (sys, "frozen", True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value, raising=False)
            with allocating() as works:
                assert not works
