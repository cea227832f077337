"""The options of writing shards, for Python and the command line."""

from dataclasses import dataclass
from typing import Literal, get_type_hints

from addnorm.arguments import check_types
from addnorm.errors import InputError

Unit = Literal["file", "line", "paragraph"]
"""The unit of a document in a text file."""

MOST_TOKENS = 2**31
"""The most tokens of a shard, whose places have four bytes."""


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How texts are read, and divided into shards.

    Raises `InputError` for a number out of range.
    """

    vocab_size: int | None = None
    """Learn a byte-level BPE tokenizer of this size from the first 100 million characters, in place
    of one that is given.
    """
    field: str = "text"
    """The key of JSON lines, or the column of Parquet files, that holds the text."""
    unit: Unit = "file"
    """The unit of a document in text files: the whole file, a line, or a paragraph between empty
    lines.
    """
    dedup: Literal["exact"] | None = None
    """Keep only the first of equal documents, by a digest of 128 bits."""
    valid_fraction: float = 0.0
    """The share of documents, chosen by their digests, that is written to the folder `valid` of the
    shards instead. Equal documents are on one side.
    """
    shard_tokens: int = 2**26
    """The tokens from which a shard is full."""

    def __post_init__(self) -> None:
        check_types(get_type_hints(type(self)), vars(self))
        if not 0 <= self.valid_fraction < 1:
            raise InputError(f"`valid_fraction = {self.valid_fraction:g}`: give 0 to less than 1")
        if not 1 <= self.shard_tokens <= MOST_TOKENS:
            raise InputError(f"`shard_tokens = {self.shard_tokens}`: give 1 to {MOST_TOKENS:,}")
