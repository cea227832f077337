"""The command in this process."""

from collections.abc import Callable

import pytest

from addnorm.cli.main import status

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def addnorm(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command: its exit status, what it wrote and what it said."""

    def command(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = status([str(word) for word in words])
        return code, *capsys.readouterr()

    return command
