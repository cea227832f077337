"""A dataset that Hugging Face's library saved to disk, row by row, with its classes by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.errors import InputError

STATE = "state.json"
"""The file that is in the folder of every saved split."""
SPLITS = "dataset_dict.json"
"""The file that is in the folder of several saved splits."""


def is_saved(folder: Path) -> bool:
    """Whether this is the folder of a split that `save_to_disk` wrote."""
    return (folder / STATE).is_file()


def saved_splits(folder: Path) -> list[str]:
    """The names of the splits that `save_to_disk` wrote into a folder; none in any other."""
    if not (folder / SPLITS).is_file():
        return []
    return sorted(one.name for one in folder.iterdir() if is_saved(one))


def saved_rows(folder: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The rows of a saved split with their places, numbered from 1; images and clips as files.

    Raises `InputError` without the package, and for a folder that it cannot read.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise InputError(f'{folder}: needs: pip install "addnorm[datasets]"') from error
    try:
        dataset: Any = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError, DatasetsError) as error:
        raise InputError(f"datasets cannot load {folder}: {error}") from error
    classes = {column: class_names(feature) for column, feature in dataset.features.items()}
    for n, record in enumerate(undecoded(dataset), 1):
        yield f"{folder}, row {n}", {k: named(cell, classes[k]) for k, cell in record.items()}


def undecoded(dataset: Any) -> Any:
    """The dataset with images and clips as the files that they are, which we read ourselves."""
    import datasets

    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return dataset


def class_names(feature: Any) -> list[str] | None:
    """The class names of a column of class ids, or of lists of class ids."""
    from datasets import ClassLabel, List

    inner: Any = feature.feature if isinstance(feature, List) else feature
    return inner.names if isinstance(inner, ClassLabel) else None


def named(cell: Any, classes: list[str] | None) -> Any:
    """Replace class ids in a cell by names; -1 means no class in `datasets`."""
    if classes is None or cell is None:
        return cell
    if isinstance(cell, int):
        return classes[cell] if cell >= 0 else None
    return [classes[i] if i >= 0 else "" for i in cell]
