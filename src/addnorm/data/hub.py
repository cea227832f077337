"""Corpora that Hugging Face `datasets` yields: from the hub by name, or from a local folder."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus
from addnorm.data.reading import given
from addnorm.data.rows import Row, assemble
from addnorm.data.tables import Columns
from addnorm.errors import InputError, nearest


@config
class DatasetConfig(Columns):
    """A dataset of the hub (the only source that uses the network), or a local folder.

    `path` and `name` are those of `datasets.load_dataset`; a folder written by `save_to_disk` is
    read as such. `train`, `valid` and `test` name its splits. Class numbers become class names.
    """

    kind: Literal["dataset"] = "dataset"
    path: str
    name: str | None = None
    train: str = "train"
    valid: str | None = None
    test: str | None = None
    lowercase: bool = False
    valid_fraction: Probability = 0.0
    seed: int = 0

    def load(self) -> Corpus:
        """Load and check it; raise `InputError` where it is not to be had."""
        found = _load(self.path, self.name)
        rows: dict[str, Iterable[Row]] = {}
        for split, name in given(self.train, self.valid, self.test).items():
            if name not in found:
                known = ", ".join(found)
                raise InputError(
                    f"{self.path} has no split {name!r}: {known}.{nearest(name, found)}"
                )
            rows[split] = self.rows(name, found[name])
        return assemble(rows, self.lowercase, self.valid_fraction, self.seed)

    def rows(self, name: str, dataset: Any) -> Iterator[Row]:
        """The rows of one split, numbered from 1."""
        for n, record in enumerate(dataset, 1):
            named = {key: _named(value, dataset.features[key]) for key, value in record.items()}
            yield self.row(f"{self.path}, {name} row {n}", named)


def _load(path: str, name: str | None) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise InputError('kind = "dataset" needs: pip install "addnorm[datasets]"') from error
    folder = Path(path)
    saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        found = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"datasets cannot load {path!r}: {error}") from error
    return {"train": found} if isinstance(found, datasets.Dataset) else dict(found)


def _named(value: Any, feature: Any) -> Any:
    """The value with class numbers as names; -1 is how `datasets` says that there is no label."""
    from datasets import ClassLabel, List

    if isinstance(feature, ClassLabel) and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    if isinstance(feature, List) and isinstance(value, list):
        return [_named(item, feature.feature) for item in value]
    return value
