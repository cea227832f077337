"""Checksums of a finished run's files and of its data, to detect later changes or damage.

`digests.json` has the XXH3 hash (128 bits) of every file that is read when opening the run. It is
fast enough to be checked on every load. It is not a signature: anyone who changes a file can also
change its digest.

`data.json` has, for each split, the number of examples and the XXH3 hash (128 bits) of what the
model reads and learns from them. The same data in another folder have the same digests.
"""

import json
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash
from pydantic import TypeAdapter

from addnorm.atomic import atomic_write
from addnorm.data.ids.compact import Compact, Encoded, Rows
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.forecast_windows import ForecastWindows
from addnorm.data.shards.source import ShardedTexts
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.runs.files.folder import OPENED

DIGESTS = "digests.json"


@dataclass(frozen=True)
class Listed:
    """The digests of a run's files, by file name."""

    xxh3_128: dict[str, str]


def write_digests(folder: Path) -> None:
    """Write the digests of a finished run."""
    matches = {file for pattern in OPENED for file in folder.glob(pattern)}
    files = sorted(file for file in matches if file.is_file())
    listed = {file.relative_to(folder).as_posix(): digest(file) for file in files}
    atomic_write(folder / DIGESTS, json.dumps({"xxh3_128": listed}, indent=1))


def check_digest(file: Path) -> None:
    """Raise `InputError` if a file does not match its digest.

    Files that are not listed are not checked, as in runs of earlier versions.
    """
    expected = _digests(file.parent).get(file.name)
    if expected is not None and file.exists():
        _check(file, expected, file.parent / DIGESTS)


def _check(file: Path, expected: str, listed: Path) -> None:
    if digest(file) != expected:
        raise InputError(
            f"{file}: damaged: its digest is not that in {DIGESTS}. If you changed it on purpose, "
            f"remove {listed}"
        )


def check_digests(folder: Path) -> int:
    """Check every file of a run against its digest; return the number of files.

    Raises `InputError` naming the first missing or changed file, or if there are no digests.
    """
    listed = _digests(folder)
    if not listed:
        raise InputError(
            f"{folder}: no {DIGESTS}: the run is not finished, or of an earlier version"
        )
    for name, expected in listed.items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing, though {DIGESTS} lists it")
        _check(folder / name, expected, folder / DIGESTS)
    return len(listed)


def digest(file: Path) -> str:
    """The XXH3 hash of a file."""
    with file.open("rb") as stream:
        if not file.stat().st_size:
            return xxhash.xxh3_128(b"").hexdigest()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return xxhash.xxh3_128(content).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    file = folder / DIGESTS
    return read_json(file, TypeAdapter(Listed)).xxh3_128 if file.is_file() else {}


DATA = "data.json"


@dataclass(frozen=True)
class SplitDigest:
    """The number of examples of a split, and the digest of their contents."""

    examples: int
    xxh3_128: str


Splits = dict[str, SplitDigest]
SPLITS = TypeAdapter(Splits)


def write_data_digests(folder: Path, encoded: EncodedCorpus) -> None:
    """Write the digests of the data of a run."""
    atomic_write(folder / DATA, SPLITS.dump_json(data_digests(encoded), indent=1).decode())


def check_same_data(folder: Path, encoded: EncodedCorpus) -> Iterator[str]:
    """Yield a message for each split, other than for training, that changed since the run began.

    Runs of earlier versions have no digests, and a message says so. Raises `InputError` if the
    training examples have changed.
    """
    if not (folder / DATA).is_file():
        yield f"{folder}: no {DATA}: cannot verify that its data are those that it began with"
        return
    before, now = read_json(folder / DATA, SPLITS), data_digests(encoded)
    if change := _change(before, now, "train"):
        raise InputError(
            f"{folder}: its training data have changed: {change}. Put back those that the run "
            f"began with; or begin another run from its weights, `train.start = {folder}`"
        )
    for split in ("valid", "test"):
        if change := _change(before, now, split):
            yield (
                f"warning: the {split} data have changed: {change}: figures from here on do not "
                "compare with those before"
            )


def valid_digest(encoded: EncodedCorpus) -> str:
    """The digest of the validation examples; empty if there are none."""
    return _digest(encoded.valid) if len(encoded.valid) else ""


def saved_valid_digest(folder: Path) -> str | None:
    """The `valid_digest` when a run was last trained; None for runs of older versions."""
    if not (folder / DATA).is_file():
        return None
    valid = read_json(folder / DATA, SPLITS).get("valid")
    return "" if valid is None else valid.xxh3_128


def data_digests(encoded: EncodedCorpus) -> Splits:
    """The digest of each split that has examples."""
    return {
        split: SplitDigest(len(examples), _digest(examples))
        for split, examples in encoded.splits.items()
        if len(examples)
    }


def _change(before: Splits, now: Splits, split: str) -> str:
    """Return a phrase that says how a split differs; empty if it does not."""
    old, new = before.get(split), now.get(split)
    if old == new:
        return ""
    n_old, n_new = (split.examples if split else 0 for split in (old, new))
    if n_old == n_new:
        return f"the same number of examples, {n_new:,}, and not the same ones"
    return f"{n_old:,} examples when the run began, and {n_new:,} now"


def _digest(examples: Sequence[Encoded]) -> str:
    state = xxhash.xxh3_128()
    if isinstance(examples, ShardedTexts):
        state.update(examples.digest.encode())
    elif isinstance(examples, Compact):
        _add_rows(state, examples.tokens)
        if examples.targets.ids is not examples.tokens.ids:
            _add_rows(state, examples.targets)
        if examples.values is not None:
            values = [value for value in examples.values if value is not None]
            state.update(torch.stack(values).numpy().tobytes())
    elif isinstance(examples, ForecastWindows):
        state.update(np.array([examples.look_back, examples.horizon], np.int64).tobytes())
        state.update(examples.starts.tobytes())
        state.update(examples.values.numpy().tobytes())
    else:
        for example in examples:
            _add_example(state, example)
    return state.hexdigest()


def _add_example(state: "xxhash.xxh3_128", example: Encoded) -> None:
    tokens, targets = example.tokens, example.targets
    state.update(np.array([len(tokens), *tokens, *targets], np.int64).tobytes())
    for tensor in (example.signal, example.values):
        if tensor is not None:
            state.update(np.array(tensor.shape, np.int64).tobytes())
            state.update(tensor.contiguous().numpy().tobytes())


def _add_rows(state: "xxhash.xxh3_128", rows: Rows) -> None:
    """Add the ids of all rows to a hash, and the length of each row."""
    state.update(rows.ids.data)
    state.update(rows.lengths.data)
