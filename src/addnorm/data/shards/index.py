"""The format of a folder of shards: its files and index, and reading tokens from it.

`index.json` lists the shards with their counts and digests. A shard is two files. `000000.tokens`
has the ids of its documents, one after the other, each of two or four bytes (little-endian).
`000000.documents` has the end of each document as a place in these ids, of four bytes, and then the
XXH3 hash of each block of `BLOCK` bytes of ids, of eight bytes. `tokenizer.json` is the tokenizer.

A document is its start token, its text and its end token. Where one token both ends a text and
begins the next, as in GPT-2, it is there once, at the start.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import around
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.files import read_json

INDEX = "index.json"
FORMAT = "addnorm shards"
VERSION = 1
BLOCK = 2**15
"""Bytes of ids that are checked together when some of them are read."""
TOKENIZER = "tokenizer.json"
JOURNAL = "progress.journal"
"""The file of a folder that is not finished (see `shards.journal`)."""
MOST = 2**28
"""The largest size of an index in bytes, that of nearly a million shards."""


@dataclass(frozen=True)
class ShardFacts:
    """The counts and digests of a shard; `documents_xxh3` is of the file checked at each use."""

    tokens: int
    documents: int
    characters: int
    tokens_sha256: str
    documents_sha256: str
    documents_xxh3: str


@dataclass(frozen=True)
class Framing:
    """How texts are stored in shards: the tokens around each text, and the type of ids."""

    start: tuple[int, ...]
    end: int
    dtype: str
    tokenizer: str
    """The digest of the tokenizer and of these tokens."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Framing":
        """The framing for a tokenizer. Raises `InputError` if it has no end token."""
        if tokenizer.end_id is None:
            raise InputError("the tokenizer has no end token, so no text to learn from would end")
        # GPT-2 puts nothing before a prompt, but learnt that a text begins after an end.
        start = tuple(around("language", tokenizer)[0]) or (tokenizer.bos_id,)
        n_ids = max(tokenizer.vocab_size, 1 + max(*start, tokenizer.end_id))
        facts = json.dumps([tokenizer.inner.to_str(), start, tokenizer.end_id])
        dtype = "uint16" if n_ids <= 2**16 else "uint32"
        return cls(start, tokenizer.end_id, dtype, sha256(facts.encode()).hexdigest())

    @property
    def shared(self) -> bool:
        """Whether one token both ends a text and begins the next."""
        return self.start == (self.end,)

    @property
    def ids(self) -> "np.dtype[Any]":
        """The data type of ids on disk."""
        return np.dtype(self.dtype).newbyteorder("<")


def tokens_file(folder: Path, shard: int) -> Path:
    """The file with the ids of a shard."""
    return folder / f"{shard:06d}.tokens"


def documents_file(folder: Path, shard: int) -> Path:
    """The file with the end of each document in a shard, and the hashes of its blocks of ids."""
    return folder / f"{shard:06d}.documents"


def block_hashes(content: memoryview) -> bytes:
    """Return the hash of each block of ids."""
    starts = range(0, len(content), BLOCK)
    hashes = [xxhash.xxh3_64_intdigest(content[i : i + BLOCK]) for i in starts]
    return np.array(hashes, "<u8").tobytes()


def index_text(shards: Sequence[ShardFacts], framing: Framing, facts: dict[str, Any]) -> str:
    """Return the text of an index."""
    total = {
        name: sum(getattr(shard, name) for shard in shards)
        for name in ("tokens", "documents", "characters")
    }
    head = {"format": FORMAT, "version": VERSION, "framing": asdict(framing), **total, **facts}
    lines = [json.dumps(asdict(shard)) for shard in shards]
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return text + ',\n "shards": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


@dataclass(frozen=True, eq=False)
class ShardFolder:
    """The texts in a folder of shards as one stream of ids, read in parts on demand.

    Files are opened to read a part and closed again, so any number of shards takes no more than
    their counts and digests in memory. Each block that is read is compared with its hash.
    """

    path: Path
    framing: Framing
    characters: int
    digest: str
    """The digest of all texts: that of the digests of the shards."""
    token_starts: Ids
    """Where each shard starts in the stream, and last where it ends."""
    document_starts: Ids
    documents_xxh3: Ids

    @classmethod
    def open(cls, path: Path) -> "ShardFolder":
        """Read the index, and check the sizes of all files against it.

        Raises `InputError` for a folder without shards, for one that is not finished, and for a
        file that is missing or of another size.
        """
        tree = read_index(path)
        try:
            shards: list[dict[str, Any]] = tree["shards"]
            framing = Framing(**tree["framing"] | {"start": tuple(tree["framing"]["start"])})
            if framing.dtype not in ("uint16", "uint32"):
                raise ValueError(f"dtype = {framing.dtype}")
            tokens, documents = _counts(tree, "tokens"), _counts(tree, "documents")
            hashes = np.array([int(shard["documents_xxh3"], 16) for shard in shards], np.uint64)
            state = sha256(framing.tokenizer.encode())
            for shard in shards:
                state.update(shard["tokens_sha256"].encode())
            folder = cls(
                path,
                framing,
                int(_counts(tree, "characters").sum()),
                state.hexdigest(),
                np.concatenate([[0], np.cumsum(tokens)]),
                np.concatenate([[0], np.cumsum(documents)]),
                hashes,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path / INDEX}: damaged: {error!r}") from error
        folder._check_sizes(tokens, documents)
        return folder

    def _check_sizes(self, tokens: Ids, documents: Ids) -> None:
        size = self.framing.ids.itemsize
        with os.scandir(self.path) as entries:
            sizes = {entry.name: entry.stat().st_size for entry in entries}
        for i, (n, m) in enumerate(zip(tokens.tolist(), documents.tolist(), strict=True)):
            expected = {tokens_file: n * size, documents_file: 4 * m + 8 * -(-n * size // BLOCK)}
            for file, n_bytes in expected.items():
                name = file(self.path, i)
                if sizes.get(name.name) != n_bytes:
                    there = sizes.get(name.name)
                    what = "missing" if there is None else f"has {there:,} bytes"
                    raise InputError(f"{name}: {what}, and {INDEX} says {n_bytes:,}: damaged")

    @property
    def n_documents(self) -> int:
        """The number of documents."""
        return int(self.document_starts[-1])

    @property
    def n_tokens(self) -> int:
        """The number of ids in the stream, including the end of the last document."""
        return int(self.token_starts[-1]) + self.framing.shared

    def tokens(self, start: int, stop: int) -> Ids:
        """Return the ids from position `start` to `stop` of the stream."""
        parts: list[Ids] = []
        end = int(self.token_starts[-1])
        shard = int(np.searchsorted(self.token_starts, start, side="right")) - 1
        while start < min(stop, end):
            first, last = (int(place) for place in self.token_starts[shard : shard + 2])
            parts.append(self._tokens(shard, start - first, min(stop, last) - first))
            start, shard = last, shard + 1
        if stop > end:
            parts.append(np.array([self.framing.end], self.framing.ids))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _tokens(self, shard: int, start: int, stop: int) -> Ids:
        """Read ids of one shard. Raises `InputError` where they are not as they were written."""
        size, file = self.framing.ids.itemsize, tokens_file(self.path, shard)
        first, last = start * size // BLOCK, -(-stop * size // BLOCK)
        hashes = self._documents(shard)[1][first:last]
        try:
            with file.open("rb", buffering=0) as stream:
                content = os.pread(stream.fileno(), (last - first) * BLOCK, first * BLOCK)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error
        if block_hashes(memoryview(content)) != hashes.tobytes():
            raise InputError(f"{file}: changed or cut short since it was written: make it again")
        return np.frombuffer(content, self.framing.ids)[
            start - first * BLOCK // size : stop - first * BLOCK // size
        ]

    def _documents(self, shard: int) -> tuple[Ids, Ids]:
        """Return the end of each document in a shard, and the hashes of its blocks of ids."""
        return self._cached_documents(shard)

    @cached_property
    def _cached_documents(self) -> Callable[[int], tuple[Ids, Ids]]:
        return lru_cache(maxsize=64)(self._read_documents)

    def _read_documents(self, shard: int) -> tuple[Ids, Ids]:
        file = documents_file(self.path, shard)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error
        if xxhash.xxh3_64_intdigest(content) != self.documents_xxh3[shard]:
            raise InputError(f"{file}: changed or cut short since it was written: make it again")
        n = int(self.document_starts[shard + 1] - self.document_starts[shard])
        return np.frombuffer(content, "<u4", n), np.frombuffer(content, "<u8", offset=4 * n)

    def starts(self, start: int, stop: int) -> Ids:
        """Return the positions between `start` and `stop` of the stream where a document starts."""
        parts = [np.zeros(0, np.int64)]
        shard = int(np.searchsorted(self.token_starts, start, side="right")) - 1
        while shard < len(self.documents_xxh3) and self.token_starts[shard] < stop:
            first = int(self.token_starts[shard])
            ends = self._documents(shard)[0]
            here = np.concatenate([[0], ends[:-1]]) + first
            parts.append(here[np.searchsorted(here, start) : np.searchsorted(here, stop)])
            shard += 1
        return np.concatenate(parts)

    def document(self, i: int) -> Ids:
        """Return the ids of a document, including its start and end tokens."""
        shard = int(np.searchsorted(self.document_starts, i, side="right")) - 1
        n = i - int(self.document_starts[shard])
        ends, first = self._documents(shard)[0], int(self.token_starts[shard])
        start = first + (int(ends[n - 1]) if n else 0)
        return self.tokens(start, first + int(ends[n]) + self.framing.shared)


def _counts(tree: dict[str, Any], name: str) -> Ids:
    """Return one count for each shard.

    Raises `ValueError` where these are not those of the total.
    """
    counts = [shard[name] for shard in tree["shards"]]
    if not counts:
        raise ValueError("no shards")
    if not all(type(count) is int and count > 0 for count in counts):
        raise ValueError(f"{name} of a shard: not a positive integer")
    if tree[name] != sum(counts):
        raise ValueError(f"{name} = {tree[name]}, and those of the shards are {sum(counts)}")
    return np.array(counts, np.int64)


def read_index(path: Path) -> dict[str, Any]:
    """Read the index of a folder. Raises `InputError` if there is none, or one of another kind."""
    if not (path / INDEX).is_file():
        unfinished = (path / JOURNAL).is_file()
        why = (
            "not finished: the same `addnorm tokenize` resumes it"
            if unfinished
            else f"no folder of shards: no {INDEX}. `addnorm tokenize` writes one"
        )
        raise InputError(f"{path}: {why}")
    tree = read_json(path / INDEX, most=MOST)
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InputError(f"{path / INDEX}: not an index of shards")
    if tree.get("version") != VERSION:
        raise InputError(
            f"{path / INDEX}: version {tree.get('version')} of shards, and this AddNorm reads "
            f"version {VERSION}"
        )
    return tree
