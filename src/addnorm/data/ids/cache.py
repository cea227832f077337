"""A disk cache for token arrays and tokenizers of large texts, memory-mapped when used.

The name of an entry is a digest of its cache key: the bytes of the text's files, every option, the
tokenizer, our code and the versions of the libraries. An entry ends with a checksum, which is
compared before use; a damaged entry is rebuilt.
"""

import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
import xxhash

from addnorm.atomic import atomic_file
from addnorm.data.examples import Corpus, Report
from addnorm.data.ids.compact import Compact
from addnorm.data.ids.encoding import (
    EncodedCorpus,
    characters_of,
    encode_texts,
    id_type,
    write_texts,
)
from addnorm.data.ids.layout import NextToken
from addnorm.data.readers.tables import TableConfig
from addnorm.data.readers.text_files import TextConfig, find, given
from addnorm.data.tokenizing.codecs import LibraryCodec
from addnorm.data.tokenizing.pieces import Advance, Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
)
from addnorm.errors import InputError
from addnorm.files import cache_folder
from addnorm.parts import dump

SMALLEST = 2**20
"""Bytes of text from which its ids are cached: those of less are made again in a second."""

Show = Callable[[str, int], AbstractContextManager[Advance]]
"""Show the progress of long work: its name, the characters to do, and a call with those done."""

TextFiles = TextConfig | TableConfig
"""Data in files that may be for a language model."""


class TextStore:
    """The tokenizer and ids of a language model's text files, computed once and cached.

    `say` gets a line where the cache cannot be used; the ids are then made in memory. Processes may
    share a folder: a file appears only when it is complete.
    """

    def __init__(self, data: TextFiles, *, say: Callable[[str], None], show: Show) -> None:
        self.data = data
        self.say = say
        self.show = show
        self.cache_key = cache_key(data)
        try:
            self.folder: Path | None = cache_folder() / "data"
        except RuntimeError as error:  # the home folder is unknown
            self.disable(str(error))

    @cached_property
    def corpus(self) -> Corpus:
        """The texts themselves, read only to compute their tokenizer or ids."""
        with self.show("reading the data", 0):
            corpus = self.data.load()
        if self.folder is not None and cache_key(self.data) != self.cache_key:
            self.disable("its files changed while they were read")
        return corpus

    def tokenizers(self, config: TokenizerConfig) -> Tokenizers:
        """Return the configured tokenizers, learnt from these texts or read from the cache."""
        if type(config) not in (BPEConfig, CharConfig, WordConfig):  # whose code is not ours
            return Tokenizers.train(config, self.corpus)
        file = self.file({"learnt": dump(config)}, "tokenizer")
        if file is not None and (content := intact_content(file)) is not None:
            step, text = json.loads(content)
            return _both(Tokenizer.learnt(library.Tokenizer.from_str(text), step))
        characters = int(characters_of(self.corpus.train).sum())
        with self.show("learning the tokenizer", characters):
            learnt = Tokenizers.train(config, self.corpus)
        if learnt.sampled:
            self.say(learnt.sampled)
        content = json.dumps([learnt.source.step, learnt.source.inner.to_str()])
        self.keep(file, lambda path: _write(path, content.encode()))
        return learnt

    def encoded(self, tokenizers: Tokenizers) -> EncodedCorpus:
        """Return the encoded texts, memory-mapped from the cache, or in memory without one."""
        facts = _facts(tokenizers)
        file = None if facts is None else self.file({"ids": facts}, "ids")
        stored = None if file is None else load_mapped(file, tokenizers)
        if stored is not None:
            return stored
        corpus = self.corpus
        characters = sum(int(characters_of(split).sum()) for split in corpus.splits.values())
        if file is not None and self.folder is not None:
            with self.show("tokenising", characters) as advance:
                self.keep(file, lambda path: write_ids(path, corpus, tokenizers, advance))
            stored = load_mapped(file, tokenizers)
        if stored is not None:
            return stored
        with self.show("tokenising", characters) as advance:
            return encode_texts(corpus, tokenizers, NextToken(), advance)

    def file(self, what: dict[str, Any], suffix: str) -> Path | None:
        """Return the cache file for the facts `what`; None without a cache."""
        if self.folder is None:
            return None
        facts = json.dumps([self.cache_key, what], sort_keys=True)
        return self.folder / f"{xxhash.xxh3_128_hexdigest(facts.encode())}.{suffix}"

    def keep(self, file: Path | None, write: Callable[[Path], None]) -> None:
        """Write a cache file atomically; on failure report it once and disable the cache."""
        if self.folder is None or file is None:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(file.parent)
            remove_unused(file.parent)
            with atomic_file(file, concurrent=True) as partial:
                write(partial)
                append_checksum(partial)
        except OSError as error:
            self.disable(f"{self.folder} cannot be written: {error.strerror or error}")

    def disable(self, why: str) -> None:
        """Stop using the cache, and report the reason."""
        self.folder = None
        self.say(f"{why}: the text is not cached, which takes more time and memory")


def can_keep(data: object) -> bool:
    """Return whether data are text files for a language model, large enough to be cached.

    Custom data and files that cannot be read are not.
    """
    table = type(data) is TableConfig and tuple(data.columns()) == ("text",)
    if not (type(data) is TextConfig or table):
        return False
    assert isinstance(data, TextFiles)
    try:
        return sum(file.stat().st_size for file in _files(data)) >= SMALLEST
    except (OSError, InputError):
        return False


PACKAGE = Path(__file__).parents[1]
"""`addnorm.data`, whose code the ids depend on."""


def cache_key(data: TextFiles) -> dict[str, Any]:
    """Return all that determines the texts: their files' contents, options, code and versions."""
    files = _files(data)
    try:
        digests = {str(file): digest(file) for file in files}
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    sources = b"".join(file.read_bytes() for file in sorted(PACKAGE.rglob("*.py")))
    packages = ("tokenizers", "numpy", "pyarrow")
    return {
        "data": dump(data),
        "files": digests,
        "code": xxhash.xxh3_128_hexdigest(sources),
        "versions": [sys.version, sys.byteorder, *map(_version, packages)],
    }


def _files(data: TextFiles) -> list[Path]:
    return [find(path, data.root) for path in given(data.train, data.valid, data.test).values()]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _facts(tokenizers: Tokenizers) -> list[Any] | None:
    """Return all that determines the ids; None for a custom tokenizer, whose code is unknown."""
    distinct = dict.fromkeys((tokenizers.source, tokenizers.target))
    if not all(isinstance(tokenizer.codec, LibraryCodec) for tokenizer in distinct):
        return None
    names = ("pad_id", "unk_id", "bos_id", "end_id", "before", "after")
    return [
        [
            xxhash.xxh3_128_hexdigest(tokenizer.inner.to_str().encode()),
            [getattr(tokenizer, name) for name in names],
        ]
        for tokenizer in distinct
    ]


def _both(tokenizer: Tokenizer) -> Tokenizers:
    return Tokenizers(tokenizer, tokenizer)


# Files that end with a checksum of their content.

BLOCK = 2**22
"""Bytes of a block; several blocks are digested at the same time."""

CHECKSUM_BYTES = 16
"""Bytes of a checksum."""


def digest(file: Path, size: int | None = None) -> str:
    """Return the digest of a file, or of its first `size` bytes, from digests of its blocks."""
    size = file.stat().st_size if size is None else size

    def block(start: int) -> bytes:
        with file.open("rb", buffering=0) as stream:
            stream.seek(start)
            return xxhash.xxh3_128_digest(stream.read(min(BLOCK, size - start)))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = b"".join(pool.map(block, range(0, size, BLOCK)))
    return xxhash.xxh3_128_hexdigest(digests + size.to_bytes(8, "little"))


def append_checksum(file: Path) -> None:
    """Append a file's digest to the file."""
    checksum = bytes.fromhex(digest(file))
    with file.open("ab") as stream:
        stream.write(checksum)


def is_intact(file: Path) -> bool:
    """Return whether a file exists and ends with the digest of its contents."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END) - CHECKSUM_BYTES
            stream.seek(max(size, 0))
            if size < 0 or digest(file, size) != stream.read().hex():
                return False
    except OSError:
        return False
    with suppress(OSError):
        os.utime(file)  # used now, see `remove_unused`
    return True


def intact_content(file: Path) -> bytes | None:
    """Return a file's content without the checksum; None if it is missing or damaged."""
    return file.read_bytes()[:-CHECKSUM_BYTES] if is_intact(file) else None


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


DAY = 86_400


def remove_abandoned(folder: Path) -> None:
    """Remove partial files of processes that were killed at least a day ago."""
    for left in folder.glob("tmp*"):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if newest < time.time() - DAY:
                shutil.rmtree(left)


def remove_unused(folder: Path) -> None:
    """Remove entries that have not been used for 30 days."""
    for file in (*folder.glob("*.ids"), *folder.glob("*.tokenizer")):
        with suppress(OSError):
            if file.stat().st_mtime < time.time() - 30 * DAY:
                file.unlink()


# Token arrays: the ids of each split, the lengths of its texts in ids and in characters, and their
# facts as JSON, followed by its length.

LENGTH = 8
"""Bytes of a length."""


def write_ids(file: Path, corpus: Corpus, tokenizers: Tokenizers, advance: Advance) -> None:
    """Write the ids of a corpus to a file, without having them all in memory."""
    lengths: dict[str, Ids] = {}
    with file.open("wb") as out:
        for split, examples in corpus.splits.items():
            lengths[split] = write_texts(examples, tokenizers, out, advance)
        out.write(bytes(-out.tell() % LENGTH))
        for split, examples in corpus.splits.items():
            out.write(lengths[split].tobytes())
            out.write(characters_of(examples).tobytes())
        facts = {
            "texts": {split: len(examples) for split, examples in corpus.splits.items()},
            "ids": {split: int((n + 1).sum()) for split, n in lengths.items()},
            "reports": {k: [r.read, r.used, r.left_out] for k, r in corpus.reports.items()},
        }
        written = json.dumps(facts).encode()
        out.write(written + len(written).to_bytes(LENGTH, "little"))


def load_mapped(file: Path, tokenizers: Tokenizers) -> EncodedCorpus | None:
    """Memory-map the texts written by `write_ids`; return None if they are missing or damaged."""
    try:
        with file.open("rb") as stream:
            if not is_intact(file):
                return None
            # Copy on write, though nothing writes: torch asks for a writable buffer.
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    stop = len(memory) - CHECKSUM_BYTES - LENGTH
    start = stop - int.from_bytes(memory[stop : stop + LENGTH], "little")
    facts = json.loads(memory[start:stop])
    dtype, at = id_type(tokenizers), 0
    ids: dict[str, Ids] = {}
    for split, n in facts["ids"].items():
        ids[split] = np.frombuffer(memory, dtype, n, at)
        at += n * dtype.itemsize
    at += -at % LENGTH
    splits: dict[str, Compact] = {}
    characters: dict[str, Ids] = {}
    for split, n in facts["texts"].items():
        lengths, characters[split] = np.frombuffer(memory, np.int64, 2 * n, at).reshape(2, n)
        splits[split] = Compact.documents(ids[split], lengths)
        at += 2 * n * LENGTH
    return EncodedCorpus(
        "language",
        tokenizers.target.bos_id,
        tokenizers.target.pad_id,
        splits["train"],
        splits.get("valid", ()),
        splits.get("test", ()),
        reports={split: Report(*report) for split, report in facts["reports"].items()},
        characters=characters,
        tokenizer=tokenizers.source,
        layout=NextToken(),
    )
