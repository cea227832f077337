"""Every data source, built-in or custom: `config.load()` returns a `Corpus`."""

from typing import Annotated, Protocol, runtime_checkable

from addnorm.data.examples import Corpus, Medium
from addnorm.data.readers.audio import AudioConfig
from addnorm.data.readers.chat import ChatConfig
from addnorm.data.readers.conll import ConllConfig
from addnorm.data.readers.dates import DatesConfig
from addnorm.data.readers.hub import DatasetConfig
from addnorm.data.readers.images import ImageFilesConfig, ImagesConfig
from addnorm.data.readers.labelled_series import LabelledSeriesConfig
from addnorm.data.readers.records import RecordsConfig
from addnorm.data.readers.series import SeriesConfig
from addnorm.data.readers.tables import TableConfig
from addnorm.data.readers.text_files import Files, LinesConfig, ParallelConfig, TextConfig
from addnorm.data.shards.source import ShardsConfig
from addnorm.parts import Family, members


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
    | RecordsConfig
    | ConllConfig
    | DatasetConfig
    | ImagesConfig
    | ImageFilesConfig
    | AudioConfig
    | ChatConfig
    | SeriesConfig
    | LabelledSeriesConfig
    | ShardsConfig
    | DataPart,
    Family("data", DataPart, method="load"),
]
"""Any data source, built-in or custom."""


def medium_of(data: object) -> Medium | None:
    """Return the medium of built-in data; None for custom data or without data."""
    match data:
        case ImagesConfig() | ImageFilesConfig() | DatasetConfig(image=str()):
            return "images"
        case AudioConfig():
            return "audio"
        case SeriesConfig() | LabelledSeriesConfig():
            return "series"
        case _:
            return "text" if isinstance(data, members(DataConfig)) else None


def lowercases(data: object) -> bool:
    """Whether built-in data convert their texts to lower case."""
    return isinstance(data, Files | DatasetConfig) and data.lowercase
