"""Place: where a mixer stands, and over which texts."""

from dataclasses import dataclass
from typing import Any

from addnorm.check.definition.texts import Texts


@dataclass(frozen=True, kw_only=True)
class Place:
    """The texts that a mixer reads, from left to right alone if `causal`.

    `position` is the configuration of the scheme that this layer has; `layer` counts from 0.
    """

    texts: Texts
    causal: bool
    position: Any
    layer: int
