"""Which process has ended."""

import subprocess
import sys

import pytest

from addnorm.training.parallel import members
from addnorm.training.parallel.members import Member, ended


def test_a_process_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "WAIT", 0.2)
    here = Member.here(0)
    assert Member.read(0, here.text) == here
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = Member(1, process.pid, here.host)
    assert ended([here, other]) is None
    process.communicate(b"x")
    assert ended([here, other]) == other
    assert str(other) == f"rank 1 (process {process.pid} on {here.host})"


def test_of_another_host_nothing_is_known() -> None:
    assert not Member(1, 2**22 + 1, "elsewhere").has_ended()
