"""Reference definitions of all models, written from the papers, independent of `addnorm.nn`.

Speed does not matter here, only that each line can be compared with its equation. The tokens of
several texts are concatenated (`Texts`); there is no padding and no batch axis. Each family of
parts has one table, from configuration class to function (`DEFINITIONS`).
"""

from collections.abc import Mapping
from typing import Any

from addnorm.check.definition.cores import CORES
from addnorm.check.definition.definitions import Definitions, MissingDefinition
from addnorm.check.definition.embeddings import EMBEDDINGS
from addnorm.check.definition.feedforward import FEEDFORWARDS
from addnorm.check.definition.frequencies import SCALINGS
from addnorm.check.definition.heads import HEADS
from addnorm.check.definition.mixers import MIXERS
from addnorm.check.definition.model import decoder_logits, encoder_decoder_logits, encoder_logits
from addnorm.check.definition.norms import NORMS
from addnorm.check.definition.outputs import OUTPUTS
from addnorm.check.definition.patterns import PATTERNS
from addnorm.check.definition.placements import PLACEMENTS
from addnorm.check.definition.positions import POSITIONS
from addnorm.check.definition.scores import SCORES
from addnorm.check.definition.texts import Texts

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
