"""The journal of shards being written: one line for each finished shard."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from addnorm.atomic import atomic_write
from addnorm.data.shards.account import Account
from addnorm.data.shards.duplicates import Duplicates
from addnorm.data.shards.index import JOURNAL, ShardFacts
from addnorm.data.shards.split_writer import SplitWriter
from addnorm.errors import InputError

DIGESTS = "digests.bin"
"""The file of an unfinished folder with the records of the documents so far."""


class Journal:
    """The journal of an unfinished folder, with records of the documents in its shards."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.file, self.digests = folder / JOURNAL, folder / DIGESTS
        self.settings = settings

    def begin(self, splits: dict[str, SplitWriter], duplicates: Duplicates) -> None:
        """Begin a journal, or restore the splits and documents that it records.

        Raises `InputError` if it was written with other inputs or options, or is damaged.
        """
        try:
            self._begin(self._lines(), splits, duplicates)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, FileNotFoundError) as error:
            raise InputError(
                f"{self.file} is damaged, and the folder cannot be finished: choose another one, "
                "or remove it"
            ) from error

    def _begin(
        self,
        lines: list[dict[str, Any]],
        splits: dict[str, SplitWriter],
        duplicates: Duplicates,
    ) -> None:
        if len(lines) < 2:  # no shard is finished
            self.digests.unlink(missing_ok=True)
            atomic_write(self.file, json.dumps({"settings": self.settings}) + "\n")
            return
        check_same(self.file, lines[0]["settings"], self.settings)
        n_bytes = 0
        for line in lines[1:]:
            split = splits[line["split"]]
            split.shards.append(ShardFacts(**line["shard"]))
            split.position = (line["position"][0], line["position"][1])
            split.account = Account(**line["account"])
            n_bytes = line["digests"]
        with self.digests.open("rb+") as stream:
            content = stream.read(n_bytes)
            if len(content) < n_bytes:
                raise IndexError(f"{len(content)} bytes of records, and not {n_bytes}")
            stream.truncate()
        duplicates.restore(content)

    def finished(self, name: str, split: SplitWriter, records: Sequence[bytes]) -> None:
        """Record a finished shard and its documents."""
        with self.digests.open("ab") as stream:
            stream.write(b"".join(records))
            _sync(stream)
            n_bytes = stream.tell()
        self._append(
            {
                "split": name,
                "shard": asdict(split.shards[-1]),
                "position": split.position,
                "account": asdict(split.account),
                "digests": n_bytes,
            }
        )

    def remove(self) -> None:
        """Remove the journal once the folder is finished."""
        self.digests.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)

    def _append(self, line: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            _sync(stream)

    def _lines(self) -> list[dict[str, Any]]:
        """Return the complete lines; remove an incomplete one that a crash left."""
        with suppress(FileNotFoundError):
            content = self.file.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                os.truncate(self.file, len(whole))
            return [json.loads(line) for line in whole.splitlines()]
        return []


def has_shards(folder: Path) -> bool:
    """Return whether the journal of an unfinished folder records a finished shard."""
    file = folder / JOURNAL
    return file.is_file() and file.read_bytes().count(b"\n") > 1


def _sync(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def check_same(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise `InputError` for the first setting that differs from that of an unfinished folder."""
    for name, value in json.loads(json.dumps(now)).items():
        if before.get(name) != value:
            shown = "" if len(repr(value)) > 60 else f": {before.get(name)!r}, and now {value!r}"
            raise InputError(
                f"{file}: its shards differ in {name}{shown}. Give the same again, "
                "or choose another folder"
            )
