"""Writing shards: documents are read, encoded by several processes, and written in order.

A journal has a line for each finished shard, so that a second call resumes after the last of them.
The files depend on the inputs and options alone, not on the workers or on interruptions.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

from addnorm.atomic import atomic_write
from addnorm.data.shards.account import Account, ShardReport
from addnorm.data.shards.documents import documents, files_of
from addnorm.data.shards.duplicates import Duplicates
from addnorm.data.shards.index import INDEX, JOURNAL, TOKENIZER, Framing, index_text, read_index
from addnorm.data.shards.journal import Journal, check_same
from addnorm.data.shards.near import Signature, signer_of
from addnorm.data.shards.options import ShardOptions
from addnorm.data.shards.split_writer import EncodedDocument, Position, SplitWriter
from addnorm.data.shards.workers import Encode, Encoder, workers
from addnorm.data.tokenizing.pieces import BATCH, Advance, encoder_of, piece_batches
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

VALID = "valid"
"""The folder, in that of the shards, of the documents that are held out."""


def write_shards(
    inputs: Sequence[str | Path],
    folder: Path,
    tokenizer: Tokenizer,
    options: ShardOptions,
    *,
    n_workers: int = 1,
    advance: Advance = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> ShardReport:
    """Write the documents of inputs as shards, or resume an unfinished folder.

    `advance` gets the characters that were encoded. Raises `InputError` for inputs that cannot be
    read, and for a folder of other shards.
    """
    files, framing = files_of(inputs), Framing.of(tokenizer)
    made_from = {
        "inputs": files,
        "bytes": [None if "://" in file else Path(file).stat().st_size for file in files],
        **options.settings(),
    }
    if (folder / INDEX).is_file() and not (folder / JOURNAL).is_file():
        report, before = _finished(folder)
        check_same(folder / INDEX, before, made_from | {"tokenizer": framing.tokenizer})
        say(f"{folder}: finished already")
        return report
    splits = {"train": SplitWriter(folder, framing, options)}
    if options.valid_fraction:
        splits[VALID] = SplitWriter(folder / VALID, framing, options)
    settings = made_from | {
        "tokenizer": framing.tokenizer,
        "times": [0 if "://" in file else Path(file).stat().st_mtime_ns for file in files],
    }
    writing = _Writing(folder, splits, options, made_from, Journal(folder, settings))
    return writing.run(tokenizer, n_workers, advance)


def _finished(folder: Path) -> tuple[ShardReport, dict[str, Any]]:
    """Return the report of a finished folder, and the settings with which it was written."""
    tree = read_index(folder)
    held_out = folder / VALID
    valid = read_index(held_out) if (held_out / INDEX).is_file() else {"documents": 0}
    try:
        report = ShardReport(
            Account(**tree["report"]),
            tree["tokens"],
            tree["characters"],
            len(tree["shards"]),
            valid["documents"],
        )
        return report, tree["made_from"] | {"tokenizer": tree["framing"]["tokenizer"]}
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / INDEX}: damaged: {error!r}") from error


@contextmanager
def _naming(folder: Path) -> Generator[None]:
    """In this context, add the folder's name to disk errors that name no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise


@dataclass(frozen=True)
class _Document:
    """A document as read: its place, its text, and the digest that identifies duplicates."""

    split: str
    where: str
    after: Position
    text: str
    digest: bytes


class _Writing:
    """One call of `write_shards`: reads documents, encodes them with workers, writes the splits."""

    def __init__(
        self,
        folder: Path,
        splits: dict[str, SplitWriter],
        options: ShardOptions,
        made_from: dict[str, Any],
        journal: Journal,
    ) -> None:
        self.folder, self.splits, self.options = folder, splits, options
        self.made_from, self.journal = made_from, journal
        self.accounts = dict[str, Account]()
        self.duplicates = Duplicates(options)
        self.waiting = deque[EncodedDocument]()
        """The documents whose ids are not complete, in order."""

    def run(self, tokenizer: Tokenizer, n_workers: int, advance: Advance) -> ShardReport:
        """Write all shards and their index."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal.begin(self.splits, self.duplicates)
        for split in self.splits.values():
            split.folder.mkdir(exist_ok=True)
            tokenizer.save(split.folder / TOKENIZER)
        self.accounts = {name: split.account for name, split in self.splits.items()}
        framing = next(iter(self.splits.values())).framing
        try:
            encoder = partial(_encoder, self.folder / TOKENIZER, framing.ids)
            with workers(n_workers, encoder) as pool, self._signers(n_workers) as signers:
                self._encode(tokenizer, pool, self._signed(signers), advance)
            for name, split in self.splits.items():
                if split.is_open:
                    self._finish(name, split)
        finally:
            for split in self.splits.values():
                split.close()
        return self._complete(framing)

    def _signers(self, n_workers: int) -> AbstractContextManager[Encoder | None]:
        """The processes that compute signatures; None unless near duplicates are skipped."""
        if self.options.dedup != "near":
            return nullcontext()
        return workers(n_workers, partial(signer_of, self.options))

    def _encode(
        self,
        tokenizer: Tokenizer,
        pool: Encoder,
        signed: Iterator[tuple[_Document, Signature | None]],
        advance: Advance,
    ) -> None:
        """Encode the documents, long ones in several pieces, and write them."""
        sent = deque[list[tuple[int, str]]]()

        def batches() -> Iterator[list[str]]:
            for batch in piece_batches(map(tokenizer.prepared, self._texts(signed)), tokenizer):
                sent.append(batch)
                yield [piece for _, piece in batch]

        latest = 0
        for rows in pool.encoded(batches()):
            for (n, piece), ids in zip(sent.popleft(), rows, strict=True):
                for _ in range(n - latest):  # the documents before this one are complete
                    self._write(self.waiting.popleft())
                latest = n
                self.waiting[0].ids.append(ids)
                advance(len(piece))
        for document in self.waiting:
            self._write(document)

    def _texts(self, signed: Iterator[tuple[_Document, Signature | None]]) -> Iterator[str]:
        """Yield the texts of the documents to keep, and count the skipped ones."""
        for read, signature in signed:
            outcome = "empty"
            if read.text.strip():
                outcome = self.duplicates.outcome(read.digest, signature)
            account = self.accounts[read.split].with_one(outcome)
            self.accounts[read.split] = account
            if outcome == "kept":
                record = self.duplicates.record(read.digest, signature)
                size = len(read.text)
                self.waiting.append(
                    EncodedDocument(read.split, read.where, read.after, account, size, record)
                )
                yield read.text

    def _signed(self, signers: Encoder | None) -> Iterator[tuple[_Document, Signature | None]]:
        """Yield the documents, with signatures if near duplicates are skipped."""
        if signers is None:
            yield from ((document, None) for document in self._documents())
            return
        sent = deque[list[_Document]]()

        def batches() -> Iterator[list[str]]:
            for batch in _batches(self._documents()):
                sent.append(batch)
                yield [document.text for document in batch]

        for signatures in signers.encoded(batches()):
            yield from zip(sent.popleft(), signatures, strict=True)

    def _documents(self) -> Iterator[_Document]:
        """Yield the documents that no finished shard holds or has counted."""
        first = min(split.position for split in self.splits.values())
        for number, file in enumerate(self.made_from["inputs"][first[0] :], first[0]):
            start = first[1] if number == first[0] else 0
            rows = documents(file, field=self.options.field, unit=self.options.unit, start=start)
            for n, (where, text) in enumerate(rows, start):
                digest = xxhash.xxh3_128_digest(text.encode())
                name = self._split_of(digest) if text.strip() else "train"
                after = (number, n + 1)
                if after > self.splits[name].position:
                    yield _Document(name, where, after, text, digest)

    def _split_of(self, digest: bytes) -> str:
        """The split of a document, chosen by its digest, so that equal ones share a split."""
        share = int.from_bytes(digest[:8], "little") / 2**64
        return VALID if share < self.options.valid_fraction else "train"

    def _write(self, document: EncodedDocument) -> None:
        """Write a document; if this fills a shard, finish the open shards of both splits.

        So both resume at nearly the same place. The full one is finished last: without it, a second
        call fills it again by the same document, and the other by none.
        """
        with _naming(self.splits[document.split].folder):
            is_full = self.splits[document.split].add(document)
        if is_full:
            for name in sorted(self.splits, key=lambda name: name == document.split):
                if self.splits[name].is_open:
                    self._finish(name, self.splits[name])

    def _finish(self, name: str, split: SplitWriter) -> None:
        records = split.records
        with _naming(split.folder):
            split.finish()
            self.journal.finished(name, split, records)

    def _complete(self, framing: Framing) -> ShardReport:
        """Write the indices, the whole folder's last, and remove the journal."""
        total = sum(self.accounts.values(), Account())
        empty = [name for name, split in self.splits.items() if not split.shards]
        if empty:
            what = "train" if "train" in empty else "validation"
            share = self.options.valid_fraction
            hint = {"train": "smaller", "validation": "larger"}[what]
            message = f"{self.folder}: no document is left for {what}: {total}"
            if share and len(empty) == 1:
                message += f": give a {hint} one than `valid_fraction = {share:g}`, or more texts"
            raise InputError(message)
        for name, split in reversed(self.splits.items()):
            account = total if name == "train" else self.accounts[name]
            facts = {"report": asdict(account), "made_from": self.made_from}
            atomic_write(split.folder / INDEX, index_text(split.shards, framing, facts))
        self.journal.remove()
        return _finished(self.folder)[0]


def _encoder(tokenizer: Path, dtype: Any) -> Encode:
    """Return a function that encodes with the tokenizer in a file, in one thread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return encoder_of(Tokenizer.load(tokenizer), dtype)


def _batches(documents: Iterator[_Document]) -> Iterator[list[_Document]]:
    """Yield batches of documents, each with slightly more than `BATCH` characters."""
    batch: list[_Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + 1
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def first_texts(inputs: Sequence[str | Path], options: ShardOptions, most: int) -> Iterator[str]:
    """Yield the first texts of the inputs, up to a number of characters, to learn a tokenizer."""
    rows = (documents(file, field=options.field, unit=options.unit) for file in files_of(inputs))
    left = most
    for _, text in chain.from_iterable(rows):
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return
