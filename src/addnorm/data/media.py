"""Media, such as text and images, and the properties of their examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Medium = Literal["text", "images", "audio", "series"]
"""The medium of the examples' input."""


@dataclass(frozen=True, kw_only=True)
class MediumProperties:
    """How examples of a medium are read."""

    plural: str
    """The noun for several of them."""
    batching: str
    """The kind of batching that takes any of them."""
    tokens: bool = False
    """Whether a tokenizer reads them."""
    files: bool = False
    """Whether each is in a separate file."""
    padded: bool = False
    """Whether examples of different lengths share a batch, padded."""
    frames: bool = False
    """Whether their length is a number of frames, which bounds the length of a target text."""


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
    """Return whether examples are signals, which need no tokenizer; False for an unknown medium."""
    return medium is not None and not PROPERTIES[medium].tokens


def has_files(medium: Medium | None) -> bool:
    """Return whether each example is in a separate file; False for an unknown medium."""
    return medium is not None and PROPERTIES[medium].files
