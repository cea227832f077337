"""Corpora from Hugging Face `datasets`: from the hub by name, or from a local folder."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus
from addnorm.data.rows import Row, assemble
from addnorm.data.tables import Columns
from addnorm.data.text_files import given
from addnorm.errors import InputError, nearest


@config
class DatasetConfig(Columns):
    """A dataset of the hub (the only source that uses the network), or a local folder.

    `path` and `name` are those of `datasets.load_dataset`. Class numbers become class names.
    """

    kind: Literal["dataset"] = "dataset"
    path: str
    """The dataset's name on the hub, or a local folder written by `save_to_disk`."""
    name: str | None = None
    """The configuration of the dataset, where it has several."""
    train: str = "train"
    """The split to learn from."""
    valid: str | None = None
    """The split to validate on while training."""
    test: str | None = None
    """The split that training never sees."""
    lowercase: bool = False
    """Put the text in lower case; labels and tags keep theirs."""
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` names no split."""
    seed: int = 0
    """The seed of the random rows that `valid_fraction` holds out."""

    def load(self) -> Corpus:
        """Load and check every split."""
        found = _splits(self.path, self.name)
        rows: dict[str, Iterable[Row]] = {}
        for split, name in given(self.train, self.valid, self.test).items():
            if name not in found:
                known = ", ".join(found)
                raise InputError(
                    f"{self.path} has no split {name!r}, but {known}.{nearest(name, found)}"
                )
            rows[split] = self.rows(name, found[name])
        return assemble(rows, self.lowercase, self.valid_fraction, self.seed)

    def rows(self, name: str, dataset: Any) -> Iterator[Row]:
        """Yield the rows of one split, numbered from 1."""
        classes = {column: _classes(feature) for column, feature in dataset.features.items()}
        for n, record in enumerate(dataset, 1):
            named = {column: _named(cell, classes[column]) for column, cell in record.items()}
            yield self.row(f"{self.path}, {name} row {n}", named)


def _splits(path: str, name: str | None) -> Mapping[str, Any]:
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise InputError('kind = "dataset" needs: pip install "addnorm[datasets]"') from error
    saved = any((Path(path) / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        found: Any = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, name)
    except (OSError, ValueError, DatasetsError) as error:
        raise InputError(f"datasets cannot load {path!r}: {error}") from error
    return {"train": found} if isinstance(found, datasets.Dataset) else found


def _classes(feature: Any) -> list[str] | None:
    """The class names of a column of class ids, or of lists of class ids."""
    from datasets import ClassLabel, List

    inner: Any = feature.feature if isinstance(feature, List) else feature
    return inner.names if isinstance(inner, ClassLabel) else None


def _named(cell: Any, classes: list[str] | None) -> Any:
    """Replace class ids in a cell by names; -1 means no class in `datasets`."""
    if classes is None or cell is None:
        return cell
    if isinstance(cell, int):
        return classes[cell] if cell >= 0 else None
    return [classes[i] if i >= 0 else "" for i in cell]
