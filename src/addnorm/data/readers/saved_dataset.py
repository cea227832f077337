"""A dataset that Hugging Face's library saved to disk, row by row, with its classes by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.data.readers.class_names import renames_of, with_names
from addnorm.errors import InputError, optional

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
    optional("datasets", "datasets", f"{folder}: a saved dataset")
    dataset = loaded(folder)
    renames = renames_of(dataset.features.to_dict())
    for n, record in enumerate(undecoded(dataset), 1):
        where = f"{folder}, row {n}"
        yield where, with_names(record, renames, where)


def loaded(folder: Path | str) -> Any:
    """What `save_to_disk` wrote: a dataset, or several by the names of their splits.

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


def undecoded(dataset: Any) -> Any:
    """The dataset with images and clips as the files that they are, which we read ourselves."""
    import datasets

    for name, feature in dataset.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return dataset
