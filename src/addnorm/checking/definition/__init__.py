"""Reference definitions of all models, written from the papers, independent of `addnorm.nn`.

Speed does not matter here, only that each line can be compared with its equation. The tokens of
several texts are concatenated (`Texts`); there is no padding and no batch axis. Each family of
parts has one table, from configuration class to function (`DEFINITIONS`).
"""

from collections.abc import Mapping
from typing import Any

from addnorm.checking.definition.attention import OUTPUTS
from addnorm.checking.definition.cores import CORES
from addnorm.checking.definition.definitions import Definitions, MissingDefinition
from addnorm.checking.definition.embeddings import EMBEDDINGS
from addnorm.checking.definition.feedforward import FEEDFORWARDS
from addnorm.checking.definition.frequencies import SCALINGS
from addnorm.checking.definition.heads import HEADS
from addnorm.checking.definition.mixers import MIXERS
from addnorm.checking.definition.model import decoder_logits, encoder_decoder_logits, encoder_logits
from addnorm.checking.definition.norms import NORMS
from addnorm.checking.definition.placements import PLACEMENTS
from addnorm.checking.definition.positions import POSITIONS
from addnorm.checking.definition.scores import SCORES
from addnorm.checking.definition.texts import PATTERNS, Texts

TABLES: tuple[Definitions[Any], ...] = (
    NORMS,
    POSITIONS,
    SCALINGS,
    SCORES,
    CORES,
    OUTPUTS,
    PATTERNS,
    FEEDFORWARDS,
    MIXERS,
    PLACEMENTS,
    EMBEDDINGS,
    HEADS,
)
DEFINITIONS: Mapping[str, Definitions[Any]] = {table.family: table for table in TABLES}
"""The table of each family of parts."""

__all__ = [
    "DEFINITIONS",
    "Definitions",
    "MissingDefinition",
    "Texts",
    "decoder_logits",
    "encoder_decoder_logits",
    "encoder_logits",
]
