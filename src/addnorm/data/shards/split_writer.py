"""Writing the shards of one split, document by document."""

import mmap
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from addnorm.atomic import atomic_write, publish
from addnorm.data.shards.account import Account
from addnorm.data.shards.index import (
    Framing,
    ShardFacts,
    block_hashes,
    documents_file,
    tokens_file,
)
from addnorm.data.shards.options import MOST_TOKENS, ShardOptions
from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError

MOST_DOCUMENTS = 2**18
"""The most documents of a shard, whose ends are read together."""

Position = tuple[int, int]
"""The number of a file, and of a document in it."""


@dataclass
class EncodedDocument:
    """A document being encoded, with the facts that are recorded once its ids are complete."""

    split: str
    where: str
    after: Position
    """The position after it."""
    account: Account
    """The account of its split with this document."""
    characters: int
    record: bytes
    """What a journal needs of it to find copies."""
    ids: list[Ids] = field(default_factory=list[Ids])


class SplitWriter:
    """The shards of one split: the finished ones, and the one being written."""

    def __init__(self, folder: Path, framing: Framing, options: ShardOptions) -> None:
        self.folder = folder
        self.framing = framing
        self.most = options.shard_tokens
        self.shards: list[ShardFacts] = []
        self.position: Position = (0, 0)
        self.account = Account()
        self._start = np.array(framing.start, framing.ids).tobytes()
        self._end = b"" if framing.shared else np.array([framing.end], framing.ids).tobytes()
        self._begin()

    def _begin(self) -> None:
        self._file: Any = None
        self._ends: list[int] = []
        self._n = self._characters = 0
        self.records: list[bytes] = []

    @property
    def _partial(self) -> Path:
        return self.folder / ".partial"

    def add(self, document: EncodedDocument) -> bool:
        """Write a document; return whether it fills its shard."""
        if self._file is None:
            self._file = self._partial.open("wb")
        n = len(self._start) + len(self._end)
        self._file.write(self._start)
        for ids in document.ids:
            self._file.write(ids.astype(self.framing.ids, copy=False).tobytes())
            n += ids.nbytes
        self._file.write(self._end)
        self._n += n // self.framing.ids.itemsize
        self._ends.append(self._n)
        self._characters += document.characters
        self.records.append(document.record)
        self.position, self.account = document.after, document.account
        if self._n > 2 * MOST_TOKENS:
            raise InputError(f"{document.where}: a document of more than {MOST_TOKENS:,} tokens")
        return self._n >= self.most or len(self._ends) >= MOST_DOCUMENTS

    @property
    def is_open(self) -> bool:
        """Whether a shard has been begun but not finished."""
        return self._file is not None

    def finish(self) -> None:
        """Finish the shard: write its ids first, then the ends of its documents."""
        self._file.close()
        shard = len(self.shards)
        with (
            self._partial.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            tokens_sha256, hashes = sha256(view).hexdigest(), block_hashes(view)
        publish(self._partial, tokens_file(self.folder, shard))
        ends = np.array(self._ends, "<u4").tobytes() + hashes
        atomic_write(documents_file(self.folder, shard), ends)
        digests = (tokens_sha256, sha256(ends).hexdigest(), xxhash.xxh3_64_hexdigest(ends))
        self.shards.append(ShardFacts(self._n, len(self._ends), self._characters, *digests))
        self._begin()

    def close(self) -> None:
        """Abandon the unfinished shard."""
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)
