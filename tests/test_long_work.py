"""Work that takes long shows that it goes on, in a terminal and in a log."""

import io
import threading
import time
from itertools import islice

import pytest
from rich.console import Console

from addnorm import long_work as module
from addnorm.long_work import long_work, shown_after, shown_each_second, ticking


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def wait_for(text: str, console: Console) -> None:
    """Wait until a text is shown, for at most ten seconds."""
    end = time.monotonic() + 10
    while text not in text_of(console) and time.monotonic() < end:
        time.sleep(0.005)


def test_a_log_has_a_first_line_after_two_seconds_and_then_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    assert [*islice(shown_after(), 7)] == [2, 4, 8, 16, 32, 60, 120]
    assert [*islice(shown_each_second(), 3)] == [1, 2, 3]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_or_a_dumb_terminal_has_lines_and_short_work_none(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    console = Console(
        file=io.StringIO(), force_terminal=terminal, color_system=None, _environ={"TERM": "dumb"}
    )
    with long_work(console, "encoding the data"):
        wait_for("encoding", console)
    assert text_of(console).startswith("encoding the data: 0 s so far\n")
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    with long_work(console, "nothing"):
        pass
    assert "nothing" not in text_of(console)


def test_a_terminal_has_a_line_which_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shown_each_second", lambda: iter([0.01]))
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=60)
    with long_work(console, "reading [/my] data"):
        wait_for("reading [/my] data, 0 s", console)
    assert "reading [/my] data, 0 s" in text_of(console)
    assert text_of(console).endswith("\x1b[2K")  # the line is erased


def test_a_quiet_console_has_nothing_and_a_thread_ends_with_the_work() -> None:
    quiet = Console(file=io.StringIO(), quiet=True)
    with long_work(quiet, "reading the data"):
        pass
    assert text_of(quiet) == ""
    shown = threading.Event()
    with ticking(lambda _: shown.set(), iter([0.0, 60.0])):
        assert shown.wait(10)
