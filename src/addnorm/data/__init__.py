"""Corpora, tokenizers and batches; knows nothing of models.

`DataConfig` is the list of every kind of corpus: `config.load()` gives a `Corpus`.
"""

from typing import Annotated

from pydantic import Field

from addnorm.data.dates import DatesConfig
from addnorm.data.examples import Corpus, Example, Image, Labelled, Pair, Report, Tagged, Text
from addnorm.data.hub import DatasetConfig
from addnorm.data.images import ImagesConfig
from addnorm.data.sources import ConllConfig, LinesConfig, ParallelConfig, TextConfig
from addnorm.data.tables import TableConfig

DataConfig = Annotated[
    DatesConfig
    | TextConfig
    | ParallelConfig
    | LinesConfig
    | TableConfig
    | ConllConfig
    | DatasetConfig
    | ImagesConfig,
    Field(discriminator="kind"),
]

__all__ = [
    "ConllConfig",
    "Corpus",
    "DataConfig",
    "DatasetConfig",
    "DatesConfig",
    "Example",
    "Image",
    "ImagesConfig",
    "Labelled",
    "LinesConfig",
    "Pair",
    "ParallelConfig",
    "Report",
    "TableConfig",
    "Tagged",
    "Text",
    "TextConfig",
]
