"""Corpora, tokenizers and batches, independent of models.

`DataConfig` is the union of all data configurations: `config.load()` returns a `Corpus`.
"""

from typing import Annotated, Protocol, runtime_checkable

from addnorm.data.dates import DatesConfig
from addnorm.data.examples import (
    Corpus,
    Example,
    Image,
    Labelled,
    MultiLabelled,
    Pair,
    Report,
    Scored,
    Tagged,
    Text,
)
from addnorm.data.hub import DatasetConfig
from addnorm.data.images import ImagesConfig
from addnorm.data.sources import ConllConfig, LinesConfig, ParallelConfig, TextConfig
from addnorm.data.tables import TableConfig
from addnorm.parts import Family


@runtime_checkable
class DataPart(Protocol):
    """A configuration of a custom data source."""

    def load(self) -> Corpus:
        """Load the examples, all of one kind, such as `Text`, `Pair`, `Labelled` or `Image`."""
        ...


DataConfig = Annotated[
    DatesConfig
    | TextConfig
    | ParallelConfig
    | LinesConfig
    | TableConfig
    | ConllConfig
    | DatasetConfig
    | ImagesConfig
    | DataPart,
    Family("data", DataPart, method="load"),
]
"""Any data source, built-in or custom."""

__all__ = [
    "ConllConfig",
    "Corpus",
    "DataConfig",
    "DataPart",
    "DatasetConfig",
    "DatesConfig",
    "Example",
    "Image",
    "ImagesConfig",
    "Labelled",
    "LinesConfig",
    "MultiLabelled",
    "Pair",
    "ParallelConfig",
    "Report",
    "Scored",
    "TableConfig",
    "Tagged",
    "Text",
    "TextConfig",
]
