"""Each round starts a new process, and a failing process is reported."""

import subprocess
from pathlib import Path

import pytest

from addnorm.bench.fresh import started


def test_a_round_is_a_process(tmp_path: Path) -> None:
    done = started(tmp_path, statement=f"open({str(tmp_path / 'ran')!r}, 'w')")()
    assert (tmp_path / "ran").exists()
    assert done.units == 1
    assert 0 < done.seconds < 60
    assert done.details["peak_mib"] > 1


def test_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        started(tmp_path, statement="raise SystemExit(3)")()
