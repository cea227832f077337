"""Media: what examples are made of, and what is true of all examples of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Medium = Literal["text", "images", "audio", "series"]
"""What examples are made of."""


@dataclass(frozen=True, kw_only=True)
class MediumProperties:
    """How examples of a medium are read."""

    plural: str
    """What several of them are called."""
    batching: str
    """The kind of batching that takes any of them."""
    tokens: bool = False
    """Whether a tokenizer reads them."""
    files: bool = False
    """Whether each is in a file of its own."""
    padded: bool = False
    """Whether those of several lengths stand in one batch, padded."""
    frames: bool = False
    """Whether their length is a time in frames, which bounds the length of a text about them."""


PROPERTIES: Mapping[Medium, MediumProperties] = {
    "text": MediumProperties(plural="texts", batching="tokens", tokens=True, padded=True),
    "images": MediumProperties(plural="images", batching="examples", files=True),
    "audio": MediumProperties(
        plural="audio", batching="frames", files=True, padded=True, frames=True
    ),
    "series": MediumProperties(plural="series", batching="series", padded=True),
}
"""The properties of each medium."""


def has_signals(medium: Medium | None) -> bool:
    """Whether examples are numbers, which no tokenizer reads; not if the medium is unknown."""
    return medium is not None and not PROPERTIES[medium].tokens


def has_files(medium: Medium | None) -> bool:
    """Whether each example is in a file of its own; not if the medium is unknown."""
    return medium is not None and PROPERTIES[medium].files
