"""The consoles of a command: messages go to standard error, answers to standard output."""

import os
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

console = Console(stderr=True, highlight=False)

UNFOLDED = 10_000
"""The width without a terminal: tables then take as many columns as they need."""


def figures_table(columns: Iterable[str]) -> Table:
    """A table of figures: a column for names, followed by these columns."""
    table = Table("", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def output(*, markup: bool = True) -> Console:
    """The console for answers; tables are folded only in a terminal, or to `COLUMNS`."""
    console = Console(highlight=False, markup=markup)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNFOLDED
    return console
