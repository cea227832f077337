"""One trained run of each task, made once, and the command in this process."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny

from addnorm.cli.main import status

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a task; not to be written to."""
    return cache(lambda task: train_tiny(tmp_path_factory.mktemp(task), task))


@pytest.fixture
def addnorm(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command: its exit status, what it wrote and what it said."""

    def command(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = status([str(word) for word in words])
        return code, *capsys.readouterr()

    return command
