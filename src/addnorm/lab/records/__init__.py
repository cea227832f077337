"""The boards of speed runs: targets to reach, and the recipes that hold the records."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

from addnorm.errors import InputError, choices


@dataclass(frozen=True, kw_only=True)
class Board:
    """A target score on a split of some data; the fastest recipe to reach it holds the record."""

    split: Literal["valid", "test"]
    metric: str
    target: float
    lower_is_better: bool = False

    def reached(self, figure: float) -> bool:
        """Return whether a figure is as good as the target."""
        return figure <= self.target if self.lower_is_better else figure >= self.target


BOARDS: Mapping[str, Board] = {
    "shakespeare-1.88": Board(split="valid", metric="loss", target=1.88, lower_is_better=True),
    "shakespeare-1.58": Board(split="valid", metric="loss", target=1.58, lower_is_better=True),
    "multi30k-41": Board(split="test", metric="bleu", target=41.0),
    "digits-99": Board(split="test", metric="accuracy", target=99.0),
}


def boards_of(name: str) -> list[str]:
    """The board with this name, or all boards for a kind of data, such as `shakespeare`.

    Raises `InputError` with the nearest name if there is none.
    """
    boards = [board for board in BOARDS if board == name or board.startswith(f"{name}-")]
    if not boards:
        valid = [*dict.fromkeys(board.partition("-")[0] for board in BOARDS), *BOARDS]
        raise InputError(f"no board is called {name!r}.{choices(name, valid)}")
    return boards


def record_file(board: str, *, before: bool = False) -> Traversable:
    """The file of the recipe that holds a record, or that held it before."""
    return files("addnorm.lab.records") / f"{board}{'-before' if before else ''}.toml"
