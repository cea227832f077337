"""The names of a series' variables in a run folder, `variables.json`, in the order of channels."""

import json
from pathlib import Path

from addnorm.atomic import atomic_write
from addnorm.data import Corpus, LabelledSeries, ScoredSeries
from addnorm.errors import InputError
from addnorm.files import read_file

VARIABLES = "variables.json"


def variables_of(corpus: Corpus | None) -> tuple[str, ...]:
    """The names of the variables of whole series; none for other data."""
    first = corpus.train[0] if corpus is not None else None
    return first.names if isinstance(first, LabelledSeries | ScoredSeries) else ()


def write_variables(folder: Path, names: tuple[str, ...]) -> None:
    """Write the names; nothing for a run without any."""
    if names:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / VARIABLES, json.dumps(names, ensure_ascii=False))


def read_variables(folder: Path | None) -> tuple[str, ...]:
    """Read what `write_variables` wrote. Raises `InputError` where it is missing or damaged."""
    if folder is None:
        raise InputError("this run is in no folder: it does not know the names of its variables")
    file = folder / VARIABLES
    try:
        found = json.loads(read_file(file))
    except FileNotFoundError as error:
        raise InputError(f"{file}: missing: the run is damaged") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}") from error
    if not (isinstance(found, list) and found and all(isinstance(one, str) for one in found)):
        raise InputError(f"{file}: damaged: not a list of names")
    return tuple(found)


def variables_in(folder: Path | None) -> tuple[str, ...]:
    """The names of a run's variables; none for a run that reads no whole series."""
    return read_variables(folder) if folder is not None and (folder / VARIABLES).is_file() else ()


def copy_variables(folder: Path | None, out: Path) -> None:
    """Write the names of a run beside its copy in `out`."""
    write_variables(out, variables_in(folder))
