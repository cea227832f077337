"""Crash-safe checkpoints: written to a temporary folder, hashed, synced, then renamed.

Each checkpoint is a folder: `*.safetensors` for tensors, `*.json` for everything else, and
`manifest.json`, written last, with the SHA-256 of every other file. No pickle.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from addnorm.atomic import atomic_directory, atomic_file, remove_partial, write_tensors
from addnorm.errors import InputError
from addnorm.files import read_json

MANIFEST = "manifest.json"

Json = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """The SHA-256 of every other file of a checkpoint."""

    sha256: dict[str, str]


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Json
) -> Path:
    """Write `folder/step-…` with one safetensors file for each entry of `tensors`, atomically.

    A crash at any moment leaves earlier checkpoints intact, and at most a hidden temporary folder
    that the next save removes.
    """
    final = folder / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    remove_partial(folder, "step-*")
    with atomic_directory(final, whole=True) as partial:
        for name, group in tensors.items():
            write_tensors(partial / f"{name}.safetensors", group)
        (partial / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        hashes = {file.name: _sha256(file) for file in sorted(partial.iterdir())}
        manifest = json.dumps({"sha256": hashes}, indent=1)
        (partial / MANIFEST).write_text(manifest, encoding="utf-8")
    return final


def load_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], Json]:
    """Load the tensors and metadata of a checkpoint folder.

    Raises `InputError` naming the first file that is missing, truncated or altered.
    """
    files = check_checkpoint(folder)
    tensors = {file.stem: load_file(file) for file in files if file.suffix == ".safetensors"}
    return tensors, read_json(folder / "facts.json")


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
    """The newest intact checkpoint, and a message about each newer one that is damaged."""
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
    try:
        return load_file(file)
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except SafetensorError as error:
        raise InputError(f"{file}: damaged or truncated: {error}") from error


def save_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    with atomic_file(file) as partial:
        write_tensors(partial, weights, {"format": "pt"})


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's random generators, which dropout uses."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if device.type == "cuda" else state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore a state from `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"])
