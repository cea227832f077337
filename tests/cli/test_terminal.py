"""Messages go to standard error."""

import pytest

from addnorm.cli.terminal import console


def test_messages_leave_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console.print("a message")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "a message\n")
