"""Corpora from Hugging Face `datasets`: from the hub by name, or from a local folder."""

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxtyping import UInt8
from pydantic import PositiveInt
from torch import Tensor

from addnorm.config import Probability, config
from addnorm.data.example import is_missing
from addnorm.data.examples import Corpus, Image
from addnorm.data.readers.images import read_image
from addnorm.data.readers.labelled_files import Readable
from addnorm.data.readers.rows import Row, assemble, class_in
from addnorm.data.readers.saved_dataset import SPLITS, STATE, dataset_rows, loaded
from addnorm.data.readers.tables import KINDS, Columns, Record, cell_of
from addnorm.data.readers.text_files import given
from addnorm.errors import InputError, choices, optional


@config
class DatasetConfig(Columns):
    """A dataset of the hub (the only source that uses the network), or a local folder.

    `path` and `name` are those of `datasets.load_dataset`. Class numbers become class names. In
    place of text there may be images: `image` and `label` name their columns.
    """

    kinds: ClassVar[tuple[tuple[str, ...], ...]] = (*KINDS, ("label", "image"))

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
    image: str | None = None
    """The column of the image, as `datasets` stores it or the bytes of an image file."""
    image_size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width, in pixels, that every image is brought to, as in `image_files`."""
    channels: Literal[1, 3] | None = None
    """Values of a pixel of an image: 3 for colours, as where it is left out, or 1 for grey."""
    lowercase: bool = False
    """Put the text in lower case; labels and tags keep theirs."""
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` names no split."""
    seed: int = 0
    """The seed of the random rows that `valid_fraction` holds out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.image is None) != (self.image_size is None):
            missing = "image_size, the height and width to bring images to"
            other = "image, the column of the images that image_size is for"
            raise ValueError(f"give {other if self.image is None else missing}")
        if self.image is None and self.channels is not None:
            raise ValueError("channels is for images: leave it out, or give image")
        if self.image is not None and self.lowercase:
            raise ValueError("lowercase is for texts: leave out either it or image")

    def columns(self) -> dict[str, str]:
        """The name of the column for each field of an example."""
        return super().columns() | ({} if self.image is None else {"image": self.image})

    def load(self) -> Corpus:
        """Load and check every split."""
        datasets = _splits(self.path, self.name)
        rows: dict[str, Iterable[Row]] = {}
        for split, name in given(self.train, self.valid, self.test).items():
            if name not in datasets:
                raise InputError(f"{self.path} has no split {name!r}.{choices(name, datasets)}")
            rows[split] = self.rows(name, datasets[name])
        return assemble(rows, self.lowercase, self.valid_fraction, self.seed)

    def rows(self, name: str, dataset: Any) -> Iterator[Row]:
        """Yield the rows of one split, numbered from 1."""
        read_row = self.row if self.image is None else self.picture
        for where, record in dataset_rows(dataset, f"{self.path}, {name} row"):
            yield read_row(where, record)

    def picture(self, where: str, record: Record) -> Row:
        """Convert a record to an image with its class, or return the reason to skip it.

        Raises `InputError` for a missing column, or a cell that holds no image.
        """
        cells = {name: cell_of(record, column, where) for name, column in self.columns().items()}
        if cells["image"] is None:
            return Row(where, "empty image")
        if is_missing(cells["label"]):
            return Row(where, "empty label")
        pixels = self.read(_image_file(cells["image"], where), where)
        return Row(where, Image(pixels, class_in(cells["label"], where)))

    def read(self, file: Readable, where: str) -> UInt8[Tensor, "channels height width"]:
        """Return the pixels of an image. Raises `InputError` for a file that is not an image."""
        assert self.image_size is not None
        return read_image(file, where, self.image_size, self.channels or 3)


def _image_file(cell: object, where: str) -> Readable:
    """The bytes or the path of an image in a cell. Raises `InputError` if there is neither."""
    match cell if isinstance(cell, dict) else {"bytes": cell}:
        case {"bytes": bytes(content)}:
            return BytesIO(content)
        case {"path": str(path)} if Path(path).is_file():
            return Path(path)
        case _:
            raise InputError(f"{where}: expected an image, not {str(cell)[:80]}")


def _splits(path: str, name: str | None) -> Mapping[str, Any]:
    optional("datasets", "datasets", 'kind = "dataset"')
    import datasets
    from datasets.exceptions import DatasetsError

    dataset: Any
    try:
        if any((Path(path) / file).is_file() for file in (SPLITS, STATE)):
            if name is not None:
                raise InputError(
                    f"data.name = {name!r} chooses among configurations of a dataset, and {path} "
                    "was saved to disk, which has one: leave it out"
                )
            dataset = loaded(path)
        else:
            dataset = datasets.load_dataset(path, name)
    except InputError:
        raise
    except (OSError, ValueError, DatasetsError) as error:
        raise InputError(f"datasets cannot load {path!r}: {error}") from error
    return {"train": dataset} if isinstance(dataset, datasets.Dataset) else dataset
