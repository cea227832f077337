"""The options for writing shards, shared by Python and the command line."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_type_hints

from addnorm.arguments import check_types
from addnorm.errors import InputError

Unit = Literal["file", "line", "paragraph"]
"""The unit of a document in a text file."""

MOST_TOKENS = 2**31
"""The most tokens of a shard, whose places have four bytes."""


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How texts are read and divided into shards.

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
    dedup: Literal["exact", "near"] | None = None
    """Keep only the first of equal documents, by a digest of 128 bits; with `near` also the first
    of those that are nearly equal, by MinHash (needs the extra `dedup`).
    """
    near_threshold: float = 0.8
    """With `near`: the share of equal shingles among all of two documents from which they are
    copies, as estimated by their signatures (Broder 1997).
    """
    shingle_words: int = 5
    """With `near`: the number of words in a shingle. In scripts without spaces, each character is a
    word.
    """
    permutations: int = 128
    """With `near`: the values of a signature; more estimate better, and take more time and memory.
    With 128, a kept document takes about 1.1 kB.
    """
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
        self._check_near()

    def _check_near(self) -> None:
        if not 0 < self.near_threshold <= 1:
            raise InputError(
                f"`near_threshold = {self.near_threshold:g}`: give more than 0, and at most 1"
            )
        for name, least, most in (("shingle_words", 1, 1000), ("permutations", 8, 4096)):
            if not least <= getattr(self, name) <= most:
                raise InputError(f"`{name} = {getattr(self, name)}`: give {least} to {most:,}")
        usual = {field.name: field.default for field in fields(self)}
        for name in OF_NEAR if self.dedup != "near" else ():
            if getattr(self, name) != usual[name]:
                raise InputError(f"`{name} = {getattr(self, name)}` is for `dedup = 'near'`")

    def settings(self) -> dict[str, Any]:
        """Return the options that affect the content of shards."""
        left_out = () if self.dedup == "near" else OF_NEAR
        return {name: value for name, value in asdict(self).items() if name not in left_out}


OF_NEAR = ("near_threshold", "shingle_words", "permutations")
"""The options that only near copies need."""
