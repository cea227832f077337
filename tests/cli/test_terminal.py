"""Messages go to standard error, answers to standard output, whole where no terminal folds them."""

import pytest
from rich.table import Table

from addnorm.cli.terminal import console, output


def test_messages_leave_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console.print("a message")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "a message\n")


def test_a_table_is_folded_by_columns_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("name", "value", box=None)
    table.add_row("long", "x " * 200)
    monkeypatch.delenv("COLUMNS", raising=False)
    output().print(table)
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setenv("COLUMNS", "60")
    output().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 60
