"""Hugging Face's `datasets`: splits saved to disk, and class names for class numbers."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from addnorm.errors import InputError, optional

STATE = "state.json"
"""The file that is in the folder of every saved split."""
SPLITS = "dataset_dict.json"
"""The file that is in the folder of several saved splits."""

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""The place of each row, numbered from 1, and its cells by column name."""


def is_saved(folder: Path) -> bool:
    """Whether this folder holds a split written by `save_to_disk`."""
    return (folder / STATE).is_file()


def saved_splits(folder: Path) -> list[str]:
    """Return the names of the splits that `save_to_disk` wrote to a folder; empty for others."""
    if not (folder / SPLITS).is_file():
        return []
    return sorted(entry.name for entry in folder.iterdir() if is_saved(entry))


def saved_rows(folder: Path) -> Rows:
    """Yield the rows of a saved split; images and clips stay undecoded files.

    Raises `InputError` without the package, and for a folder that it cannot read.
    """
    optional("datasets", "datasets", f"{folder}: a saved dataset")
    return dataset_rows(loaded(folder), f"{folder}, row")


def dataset_rows(dataset: Any, place: str) -> Rows:
    """Yield the rows of a `datasets.Dataset`; images and clips stay undecoded files."""
    import datasets

    features = dataset.features
    for name, feature in features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return named_rows(dataset, features.to_dict(), place)


def loaded(folder: Path | str) -> Any:
    """Load a dataset, or a mapping from split names to datasets, written by `save_to_disk`.

    Raises `InputError` for a folder that the package cannot read.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_from_disk(str(folder))
    except IndexError as error:  # the package writes no file for a dataset without rows
        raise InputError(f"{folder}: a split there has no rows") from error
    except (OSError, ValueError, KeyError, TypeError, DatasetsError) as error:
        raise InputError(f"datasets cannot load {folder}: {error}") from error


LISTS = ("List", "LargeList", "Sequence")
"""The kinds of features that are lists of another."""

Rename = Callable[[Any], Any]
"""From a cell with class numbers to one with class names; -1 means no class."""


def described_features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Return the features that `datasets` stores in a Parquet file's metadata, if any."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return cast(Mapping[str, Any], features) if isinstance(features, dict) else {}


def named_rows(
    records: Iterable[Mapping[str, Any]], features: Mapping[str, Any], place: str
) -> Rows:
    """Yield each record with its place, and with class names in place of class numbers.

    `features` are those of `Features.to_dict()`. Raises `InputError` for a number without a name.
    """
    renames = _renames(features)
    for n, record in enumerate(records, 1):
        where = f"{place} {n}"
        try:
            yield where, _renamed(record, renames)
        except IndexError as error:
            raise InputError(f"{where}: {error}") from error


def _renames(features: Mapping[str, Any]) -> dict[str, Rename]:
    return {column: new for column, feature in features.items() if (new := _rename(feature))}


def _renamed(record: Mapping[str, Any], renames: Mapping[str, Rename]) -> Mapping[str, Any]:
    return {name: renames[name](cell) if name in renames else cell for name, cell in record.items()}


def _rename(feature: Any) -> Rename | None:
    """Return a function that names the classes in a feature's cells; None if it has none."""
    match feature:
        case {"_type": "ClassLabel", "names": [*names]}:
            return partial(_class_name, names)
        case {"_type": kind} if kind in LISTS:
            inner = _rename(feature.get("feature"))
            return inner and partial(_list_renamed, inner)
        case {"_type": str()}:
            return None
        case dict():
            renames = _renames(cast(dict[str, Any], feature))
            return (lambda cell: _renamed(cell, renames) if cell else cell) if renames else None
        case _:
            return None


def _class_name(names: Sequence[str], cell: Any) -> Any:
    if not isinstance(cell, int):
        return cell
    if cell >= len(names):
        raise IndexError(f"class number {cell} has no name: there are {len(names)}")
    return names[cell] if cell >= 0 else None


def _list_renamed(rename: Rename, cell: Any) -> Any:
    return ["" if (name := rename(part)) is None else name for part in cell] if cell else cell
