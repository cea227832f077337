"""The names of a series' variables in a run folder, `variables.json`, in the order of channels."""

import json
from pathlib import Path

from addnorm.atomic import atomic_write
from addnorm.data import Corpus, LabelledSeries, ScoredSeries
from addnorm.files import read_names
from addnorm.runs.files.layout import VARIABLES


def variables_of(corpus: Corpus | None) -> tuple[str, ...]:
    """The names of the variables of whole series; none for other data."""
    first = corpus.train[0] if corpus is not None else None
    return first.names if isinstance(first, LabelledSeries | ScoredSeries) else ()


def write_variables(folder: Path, names: tuple[str, ...]) -> None:
    """Write the names; nothing for a run without any."""
    if names:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / VARIABLES, json.dumps(names, ensure_ascii=False))


def read_variables(folder: Path) -> tuple[str, ...]:
    """Read what `write_variables` wrote; no names where there is no file.

    Raises `InputError` if it is damaged.
    """
    file = folder / VARIABLES
    return read_names(file) if file.is_file() else ()
