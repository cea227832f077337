"""Corpora, tokenizers and batches; knows nothing of models.

`DataConfig` is the list of every kind of corpus: `config.load()` gives a `Corpus`.
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
    """A configuration of a data source of someone's own."""

    def load(self) -> Corpus:
        """The examples, all of one kind, such as `Text`, `Pair`, `Labelled` or `Image`."""
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
"""Every data source there is."""

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
