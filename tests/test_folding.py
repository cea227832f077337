"""Messages are folded between words, and what stands in backquotes stays whole."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from addnorm.folding import folded, tell


def test_words_and_commands_stay_whole() -> None:
    text = "stopped after step 12; resume with `addnorm train --resume runs/my --train.steps 100`"
    assert folded(text, 40).splitlines() == [
        "stopped after step 12; resume with",
        "`addnorm train --resume runs/my --train.steps 100`",
    ]
    assert folded(text, None) == text


@given(st.lists(st.sampled_from(["a", "word", "well-known", "x" * 30]), min_size=1), st.booleans())
def test_folding_changes_spaces_between_words_alone(words: list[str], lines: bool) -> None:
    text = ("\n" if lines else " ").join(words)
    after = folded(text, 20)
    assert after.split() == text.split()
    assert all(len(line) < 20 or " " not in line for line in after.split("\n"))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_folded_in_a_terminal_alone(terminal: bool) -> None:
    console = Console(file=StringIO(), width=20, force_terminal=terminal)
    tell(console, "train: 1,234 read, 1,230 used")
    shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert shown == (
        "train: 1,234 read,\n1,230 used\n" if terminal else "train: 1,234 read, 1,230 used\n"
    )
