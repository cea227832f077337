"""Every option that names a file or folder to write is refused where nothing can be written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_wrong_inputs import Command, check

from addnorm.cli.main import COMMANDS, app, check_place

READS = {("lab", "list", "--out")}
"""Options named `--out` that name a folder to read."""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    for name in COMMANDS:
        below = [inner for inner in app[name] if not inner.startswith("-")]
        yield from ((name, inner) for inner in below) if below else [(name,)]


def writers() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with an option `--out`, and that option."""
    for words in commands():
        command = app
        for word in words:
            command = command[word]
        for argument in command.assemble_argument_collection():
            if "--out" in argument.names and (*words, "--out") not in READS:
                yield words, argument


def test_every_place_to_write_is_checked_before_the_work() -> None:
    found = dict(writers())
    assert len(found) >= 18
    for words, argument in found.items():
        assert check_place in argument.parameter.validator, words


@pytest.mark.parametrize(
    "words",
    [
        ["prune", "run", "--heads", "0.5", "--out"],
        ["train", "my.toml", "--out"],
        ["export", "run"],
        ["new", "norm"],
        ["forecast", "run", "history.csv", "--plot"],
    ],
)
def test_it_is_known_in_one_line(
    addnorm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    check(addnorm, tmp_path, [*words, "file/deep/new.png"], "nothing can be written in | file")


def test_a_picture_is_not_a_folder(addnorm: Command, tmp_path: Path) -> None:
    folder = tmp_path / "look.png"
    folder.mkdir()
    check(addnorm, tmp_path, ["look", "run", "a", "--out", folder], "is a folder: give the name")
