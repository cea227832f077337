"""Every option that names a file or folder to write is refused where nothing can be written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_wrong_inputs import Command, check

from addnorm.cli.main import COMMANDS, app, check_file_place, check_place

READS = {("lab", "list", "--out")}
"""Options named `--out` that name a folder to read."""

WRITES = ("--out", "--plot", "--predictions", "--confusion")
"""The options that name a file or folder to write."""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    for name in COMMANDS:
        below = [inner for inner in app[name] if not inner.startswith("-")]
        yield from ((name, inner) for inner in below) if below else [(name,)]


def writers() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each option that names a place to write, with its command and name."""
    for words in commands():
        command = app
        for word in words:
            command = command[word]
        for argument in command.assemble_argument_collection():
            for name in {*WRITES} & {*argument.names}:
                if (*words, name) not in READS:
                    yield (*words, name), argument


def test_every_place_to_write_is_checked_before_the_work() -> None:
    found = dict(writers())
    assert len(found) >= 22
    for words, argument in found.items():
        assert {check_place, check_file_place} & {*argument.parameter.validator}, words


@pytest.mark.parametrize(
    "words",
    [
        ["prune", "run", "--heads", "0.5", "--out"],
        ["train", "my.toml", "--out"],
        ["export", "run"],
        ["new", "norm"],
        ["forecast", "run", "history.csv", "--plot"],
        ["forecast", "run", "history.csv", "--out"],
        ["evaluate", "run", "--predictions"],
        ["quantize", "run", "--sweep", "--plot"],
    ],
)
def test_it_is_known_in_one_line(
    addnorm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    check(addnorm, tmp_path, [*words, "file/deep/new.png"], "nothing can be written in | file")


@pytest.mark.parametrize(
    "words",
    [
        ["look", "run", "a", "--out"],
        ["evaluate", "run", "--predictions"],
        ["evaluate", "run", "--confusion"],
        ["forecast", "run", "history.csv", "--out"],
        ["embed", "run", "--out"],
    ],
)
def test_a_file_is_not_a_folder(addnorm: Command, tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "look.png"
    folder.mkdir()
    check(addnorm, tmp_path, [*words, folder], "is a folder: give the name of a file in it")
