"""Every public method refuses wrong types and values by one message, in a process without checks.

The tests of this project check types at run time, so the calls are made in another process.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CALLS = Path(__file__).with_name("wrong_arguments.py")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param("language translation", marks=pytest.mark.long),
        pytest.param("classification tagging masked span", marks=pytest.mark.long),
        pytest.param("images sound pictures", marks=pytest.mark.slow),
        pytest.param("series forecasting similarity chat", marks=pytest.mark.slow),
    ],
)
def test_every_wrong_argument_is_one_message(kinds: str, tmp_path: Path) -> None:
    """Of every public method of a run: no other exception, and no wrong value is accepted."""
    command = [sys.executable, str(CALLS), *kinds.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "functions",
    [
        pytest.param("functions", marks=pytest.mark.long),
        pytest.param("settings", marks=pytest.mark.slow),
    ],
)
def test_functions_refuse_wrong_arguments(functions: str, tmp_path: Path) -> None:
    """`load`, the constructors of data and the rewriting of runs; `train` and `check`."""
    command = [sys.executable, str(CALLS), functions]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
