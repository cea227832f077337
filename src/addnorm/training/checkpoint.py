"""Crash-safe checkpoints: written to a temporary folder, hashed, synced, then renamed.

Each checkpoint is a folder: `*.safetensors` for tensors, `*.json` for everything else, and
`manifest.json`, written last, with the SHA-256 of every other file. No pickle. Processes that split
the weights write their own pieces, to `model-00001-of-00002.safetensors` and so on.
"""

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from addnorm.atomic import (
    atomic_file,
    begin_folder,
    named_as,
    partial_of,
    publish_folder,
    remove_partial,
    write_tensors,
)
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.training.interruptions import ExhaustedError, patiently
from addnorm.training.parallel.world import OneProcess, World
from addnorm.training.stored import SavedTensor, StoredTensors, Tensors, write_saved

MANIFEST = "manifest.json"

Json = dict[str, Any]
Hashes = dict[str, str]
"""The SHA-256 of files by name."""


@dataclass(frozen=True)
class Manifest:
    """The SHA-256 of every other file of a checkpoint."""

    sha256: Hashes


def save_checkpoint(
    folder: Path, step: int, tensors: Tensors, facts: Json, world: World | None = None
) -> Path:
    """Write `folder/step-…` with a safetensors file for each entry of `tensors`, atomically.

    Every process of the world calls this, each with its own tensors, and returns when all is
    written. A disk that is full or unwritable is waited for (see `patiently`). A crash at any
    moment leaves earlier checkpoints intact, and at most a hidden temporary folder that the next
    save removes. Raises `ExhaustedError` in every process if one of them cannot write.
    """
    world = world or OneProcess()
    writer = _Writer(folder / f"step-{step:08d}", tensors, facts, world)

    def in_all(do: Callable[[], Hashes]) -> Hashes:
        return _in_all(world, lambda: patiently(do, f"step {step}", world.say))

    try:
        in_all(writer.begin)
        hashes = in_all(writer.write)
        in_all(lambda: writer.publish(hashes))
    finally:
        if world.leads:
            shutil.rmtree(writer.partial, ignore_errors=True)
    return writer.final


@dataclass(frozen=True)
class _Writer:
    """Writes this process's part of a checkpoint; a step that failed can be repeated."""

    final: Path
    tensors: Tensors
    facts: Json
    world: World

    @property
    def partial(self) -> Path:
        return partial_of(self.final)

    def begin(self) -> Hashes:
        """Make the temporary folder."""
        if self.world.leads:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            remove_partial(self.final.parent, "step-*")
            with named_as(self.final, self.partial):
                begin_folder(self.partial)
        return {}

    def write(self) -> Hashes:
        """Write the tensors of this process; return the digests of its files."""
        world, hashes = self.world, Hashes()
        part = f"-{world.rank + 1:05d}-of-{world.size:05d}" if world.holds_pieces else ""
        with named_as(self.final, self.partial):
            for name, group in self.tensors.items() if world.leads or part else ():
                file = self.partial / f"{name}{part}.safetensors"
                write_saved(file, group)
                hashes[file.name] = _sha256(file)
        return hashes

    def publish(self, hashes: Hashes) -> Hashes:
        """Write everything else, and give the folder its name."""
        if self.world.leads:
            with named_as(self.final, self.partial):
                if self.partial.exists() or not self.final.exists():  # else only a sync had failed
                    self._write_facts(hashes)
                publish_folder(self.partial, self.final)
        return {}

    def _write_facts(self, hashes: Hashes) -> None:
        facts = self.partial / "facts.json"
        facts.write_text(json.dumps(self.facts), encoding="utf-8")
        manifest = {"sha256": hashes | {facts.name: _sha256(facts)}}
        (self.partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _in_all(world: World, do: Callable[[], Hashes]) -> Hashes:
    """Run `do` in every process; return the merged results once all have finished.

    Raises `ExhaustedError` if one of them cannot write.
    """
    problem = None
    try:
        text = json.dumps(do())
    except (OSError, InputError) as error:
        problem, text = error, str(error)
    texts = world.exchange(text)
    if problem is not None:
        raise problem
    for rank, text in enumerate(texts):
        if not text.startswith("{"):
            raise ExhaustedError(f"rank {rank}: {text}")
    return {name: digest for text in texts for name, digest in json.loads(text).items()}


def load_checkpoint(folder: Path) -> tuple[dict[str, Mapping[str, Tensor]], Json]:
    """Return a checkpoint's tensors, each read on access, and its metadata.

    Raises `InputError` naming the first file that is missing, truncated or altered.
    """
    files: dict[str, list[Path]] = {}
    for file in sorted(check_checkpoint(folder)):
        if match := re.fullmatch(r"(.+?)(-\d{5}-of-\d{5})?\.safetensors", file.name):
            files.setdefault(match[1], []).append(file)
    groups = {name: StoredTensors(of_group) for name, of_group in files.items()}
    return {**groups}, read_json(folder / "facts.json")


def check_checkpoint(folder: Path) -> list[Path]:
    """Verify a checkpoint; return its files. Raises `InputError` if it is incomplete or damaged."""
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder}: no {MANIFEST}: the checkpoint was never finished")
    hashes = read_json(folder / MANIFEST, TypeAdapter(Manifest)).sha256
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file():
            raise InputError(f"{file}: missing, though the manifest lists it")
        if _sha256(file) != expected:
            raise InputError(f"{file}: damaged: its SHA-256 is not the one in the manifest")
    return [folder / name for name in hashes]


def latest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, and a message for each newer one that is damaged."""
    problems: list[str] = []
    for candidate in reversed(checkpoints_in(folder)):
        try:
            check_checkpoint(candidate)
        except InputError as error:
            problems.append(str(error))
        else:
            return candidate, problems
    return None, problems


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def keep_latest(newest: Path, keep: int) -> None:
    """Remove all checkpoints except `newest` and the `keep - 1` before it.

    Later checkpoints are damaged, because the run resumed before them; they are removed too.
    """
    checkpoints = checkpoints_in(newest.parent)
    end = checkpoints.index(newest) + 1
    for path in checkpoints[: max(0, end - keep)] + checkpoints[end:]:
        shutil.rmtree(path)


def load_weights(file: Path) -> dict[str, Tensor]:
    """Load a safetensors file. Raises `InputError` if it is missing or damaged."""
    with naming_damage(file):
        return load_file(file)


@contextmanager
def naming_damage(file: Path) -> Generator[None]:
    """In this context, raise `InputError` if a safetensors file is missing or damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except SafetensorError as error:
        raise InputError(f"{file}: damaged or truncated: {error}") from error


def stored_weights(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a safetensors file, each read on access."""
    with naming_damage(file):
        return StoredTensors([file])


def save_weights(
    file: Path, weights: Mapping[str, Tensor], outline: Mapping[str, Tensor] | None = None
) -> None:
    """Write a safetensors file atomically; with `outline`, one tensor at a time."""
    with atomic_file(file) as partial:
        write_tensors(partial, weights, {"format": "pt"}, outline=outline)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Background:
    """A thread that runs one piece of work at a time; whoever waits for it gets its error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start the work, once the work before it has finished.

        Raises the error of the one before.
        """
        self.finish()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="background", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the work, if there is any; raise the work's error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def finishing(self) -> Generator[None]:
        """Wait for the work at the end of this context, also after an error except Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self.finish()
            raise
        self.finish()


class Copies:
    """Copies of tensors that training changes; each new copy reuses the memory of the last."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, SavedTensor]] = {}

    @torch.no_grad()
    def of(self, groups: Tensors) -> Tensors:
        """Copy the tensors as they are now."""
        self._last = {
            group: {name: _copy(t, self._last.get(group, {}).get(name)) for name, t in ts.items()}
            for group, ts in groups.items()
        }
        return self._last


def _copy(saved: SavedTensor, last: SavedTensor | None) -> SavedTensor:
    tensor, memory = saved.tensor, None if last is None else last.tensor
    fits = memory is not None and (memory.shape, memory.dtype) == (tensor.shape, tensor.dtype)
    copy = memory.copy_(tensor) if memory is not None and fits else tensor.detach().cpu().clone()
    return replace(saved, tensor=copy)
