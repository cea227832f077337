"""A disk cache of token arrays and tokenizers of large texts, memory-mapped when used.

Each is under a digest of all that it is made of: the bytes of the text's files, every option, the
tokenizer, our code and the versions of what it uses. At its end is a digest of its own bytes, which
are compared before they are used: what is damaged is made anew.
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
from addnorm.data.readers.plain_text import TextConfig
from addnorm.data.readers.tables import TableConfig
from addnorm.data.readers.text_files import find, given
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
"""Bytes of text from which what is made of it is kept: less is made again in a second."""

Show = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows a long work: its name, how many characters it is about, and those that are done."""

TextFiles = TextConfig | TableConfig
"""Data in files that may be for a language model."""


class TextStore:
    """What a language model reads of some files, made once and kept.

    `say` gets a line where nothing can be kept; all works as well then, in memory. Processes may
    use one folder at the same time: what one writes appears whole.
    """

    def __init__(self, data: TextFiles, *, say: Callable[[str], None], show: Show) -> None:
        self.data = data
        self.say = say
        self.show = show
        self.made_of = made_of(data)
        try:
            self.folder: Path | None = cache_folder() / "data"
        except RuntimeError as error:  # nobody says where the user's folder is
            self.give_up(str(error))

    @cached_property
    def corpus(self) -> Corpus:
        """The texts themselves, read where something has to be made of them."""
        corpus = self.data.load()
        if self.folder is not None and made_of(self.data) != self.made_of:
            self.give_up("its files changed while they were read")
        return corpus

    def tokenizers(self, config: TokenizerConfig) -> Tokenizers:
        """What the configuration learns from the training texts, or has learnt before."""
        if type(config) not in (BPEConfig, CharConfig, WordConfig):  # whose code is not ours
            return Tokenizers.train(config, self.corpus)
        file = self.file({"tokenizer": dump(config)}, "tokenizer")
        if file is not None and (content := whole(file)) is not None:
            return _both(Tokenizer.learnt(library.Tokenizer.from_str(content.decode())))
        characters = int(characters_of(self.corpus.train).sum())
        with self.show("learning the tokenizer", characters):
            learnt = Tokenizers.train(config, self.corpus)
        self.keep(file, lambda path: _write(path, learnt.source.inner.to_str().encode()))
        return learnt

    def encoded(self, tokenizers: Tokenizers) -> EncodedCorpus:
        """The texts in ids, mapped from the disk, or in memory where none can be kept."""
        facts = _facts(tokenizers)
        file = None if facts is None else self.file({"ids": facts}, "ids")
        found = None if file is None else mapped(file, tokenizers)
        if found is not None:
            return found
        corpus = self.corpus
        characters = sum(int(characters_of(split).sum()) for split in corpus.splits.values())
        if file is not None and self.folder is not None:
            with self.show("tokenising", characters) as advance:
                self.keep(file, lambda path: write_ids(path, corpus, tokenizers, advance))
            found = mapped(file, tokenizers)
        if found is not None:
            return found
        with self.show("tokenising", characters) as advance:
            return encode_texts(corpus, tokenizers, NextToken(), advance)

    def file(self, what: dict[str, Any], suffix: str) -> Path | None:
        """Where something made of the texts and of `what` is kept; None where nothing is."""
        if self.folder is None:
            return None
        facts = json.dumps([self.made_of, what], sort_keys=True)
        return self.folder / f"{xxhash.xxh3_128_hexdigest(facts.encode())}.{suffix}"

    def keep(self, file: Path | None, write: Callable[[Path], None]) -> None:
        """Write a file in one step; where that fails, say so once and keep nothing more."""
        if self.folder is None or file is None:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(file.parent)
            remove_unused(file.parent)
            with atomic_file(file, concurrent=True) as partial:
                write(partial)
                seal(partial)
        except OSError as error:
            self.give_up(f"{self.folder} cannot be written: {error.strerror or error}")

    def give_up(self, why: str) -> None:
        """Keep nothing from here on, and say why."""
        self.folder = None
        self.say(f"{why}: nothing is kept of the text, which takes longer and more memory")


def can_keep(data: object) -> bool:
    """Whether data are files of text for a language model, and so large that it is worth it.

    Custom ones and files that cannot be read are not considered.
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
"""`addnorm.data`, whose code decides what the ids are."""


def made_of(data: TextFiles) -> dict[str, Any]:
    """All that the texts depend on: their files, byte by byte, every option, code and versions."""
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
    """Everything that the ids depend on; None for a custom tokenizer, whose code is unknown."""
    both = dict.fromkeys((tokenizers.source, tokenizers.target))
    if not all(isinstance(one.codec, LibraryCodec) for one in both):
        return None
    return [
        [
            xxhash.xxh3_128_hexdigest(one.inner.to_str().encode()),
            [one.pad_id, one.unk_id, one.bos_id, one.end_id, one.before, one.after],
        ]
        for one in both
    ]


def _both(tokenizer: Tokenizer) -> Tokenizers:
    return Tokenizers(tokenizer, tokenizer)


# Files with a digest at their end.

BLOCK = 2**22
"""Bytes that are read and digested at once, several such blocks at the same time."""

SEAL = 16
"""Bytes of a digest."""


def digest(file: Path, size: int | None = None) -> str:
    """The digest of a file's bytes, or the first `size` of them: of the digests of its blocks."""
    size = file.stat().st_size if size is None else size

    def block(start: int) -> bytes:
        with file.open("rb", buffering=0) as stream:
            stream.seek(start)
            return xxhash.xxh3_128_digest(stream.read(min(BLOCK, size - start)))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = b"".join(pool.map(block, range(0, size, BLOCK)))
    return xxhash.xxh3_128_hexdigest(found + size.to_bytes(8, "little"))


def seal(file: Path) -> None:
    """Write the digest of a file at its end."""
    own = bytes.fromhex(digest(file))
    with file.open("ab") as stream:
        stream.write(own)


def is_whole(file: Path) -> bool:
    """Whether a file is there, and ends with the digest of what stands before."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END) - SEAL
            stream.seek(max(size, 0))
            if size < 0 or digest(file, size) != stream.read().hex():
                return False
    except OSError:
        return False
    with suppress(OSError):
        os.utime(file)  # used now, see `remove_unused`
    return True


def whole(file: Path) -> bytes | None:
    """The content of a file that was sealed; None where it is missing or damaged."""
    return file.read_bytes()[:-SEAL] if is_whole(file) else None


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


DAY = 86_400


def remove_abandoned(folder: Path) -> None:
    """Remove what processes left behind that were killed a day ago or earlier as they wrote."""
    for left in folder.glob("tmp*"):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if newest < time.time() - DAY:
                shutil.rmtree(left)


def remove_unused(folder: Path) -> None:
    """Remove what no process has used for 30 days; it is made again when it is needed."""
    for file in (*folder.glob("*.ids"), *folder.glob("*.tokenizer")):
        with suppress(OSError):
            if file.stat().st_mtime < time.time() - 30 * DAY:
                file.unlink()


# Token arrays: the ids of each split, the lengths of its texts in ids and in characters, and what
# is said of them, in JSON, after which stands its length.

LENGTH = 8
"""Bytes of a length."""


def write_ids(file: Path, corpus: Corpus, tokenizers: Tokenizers, advance: Advance) -> None:
    """Write the texts of a corpus in ids, as they come."""
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
            "ids": {split: int((one + 1).sum()) for split, one in lengths.items()},
            "reports": {k: [one.read, one.used, one.left_out] for k, one in corpus.reports.items()},
        }
        written = json.dumps(facts).encode()
        out.write(written + len(written).to_bytes(LENGTH, "little"))


def mapped(file: Path, tokenizers: Tokenizers) -> EncodedCorpus | None:
    """The texts that `write_ids` wrote, on the disk; None where they are missing or damaged."""
    try:
        with file.open("rb") as stream:
            if not is_whole(file):
                return None
            # A copy where it is written to, which nobody does: torch wants what could be.
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    stop = len(memory) - SEAL - LENGTH
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
