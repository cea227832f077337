"""Atomic writes: a file or folder is replaced completely or not at all."""

import errno
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from addnorm.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def atomic_write(file: Path, data: str | bytes) -> None:
    """Write a file atomically, replacing any older one. Text is encoded as UTF-8."""
    with atomic_file(file) as partial:
        if isinstance(data, str):
            partial.write_text(data, encoding="utf-8")
        else:
            partial.write_bytes(data)


def check_writable(place: Path) -> None:
    """Raise `InputError` where no file or folder can be made, before the work that makes it."""
    folder = next(parent for parent in place.absolute().parents if parent.exists())
    try:
        with TemporaryDirectory(dir=folder, prefix=f".{place.name}."):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{place}: nothing can be written in {folder}: {reason}") from error


STORED_AS = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls the types of tensors, in the order in which it writes them."""


def write_tensors(
    file: Path,
    tensors: "Mapping[str, Tensor]",
    metadata: dict[str, str] | None = None,
    *,
    outline: "Mapping[str, Tensor] | None" = None,
) -> None:
    """Write a safetensors file with the usual permissions of new files.

    Its bytes are those of safetensors itself, which needs all tensors at once, makes the file
    readable for its owner alone, and reports an error of the disk as text. With `outline`, which
    has their shapes and types, each of `tensors` is asked for when it is written.
    """
    import torch

    shapes = tensors if outline is None else outline
    types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in shapes.items()}
    order = [*STORED_AS]
    names = sorted(shapes, key=lambda name: (order.index(types[name]), name))
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + shapes[name].numel() * shapes[name].element_size()
        header[name] = {
            "dtype": STORED_AS[types[name]],
            "shape": [*shapes[name].shape],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            values = tensors[name].detach().contiguous().flatten()
            stream.write(values.view(torch.uint8).cpu().numpy().data)


@contextmanager
def atomic_file(file: Path, *, concurrent: bool = False) -> Generator[Path]:
    """Yield a temporary path to write to, which is finally renamed to `file`.

    If the body raises, `file` is unchanged. Processes that may write the same file at the same time
    set `concurrent`: each then has its own temporary path, with the suffix of `file`.
    """
    if concurrent:
        with TemporaryDirectory(dir=file.parent) as folder:
            partial = Path(folder) / file.name
            yield partial
            publish(partial, file)
        return
    partial = partial_of(file)
    try:
        yield partial
        publish(partial, file)
    except OSError as error:
        _name(error, partial, file)
        raise
    finally:
        with suppress(OSError):  # the first error is the one to report
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_directory(
    folder: Path,
    replaces: Sequence[str] = (),
    *,
    index: str | None = None,
    whole: bool = False,
) -> Generator[Path]:
    """Yield a temporary folder to write to, whose files finally move to `folder`.

    A new folder appears in one step. In an existing one the new files replace those of the same
    name, in alphabetical order; then the files that match the patterns `replaces` and were not
    written again are removed. If the body raises, `folder` is unchanged.

    `index` names a file that lists the others: it is removed before any other file is replaced, so
    that it never lists a mixture of old and new ones. With `whole`, an existing folder is replaced
    with everything in it: the old one is kept as `folder.old` until the new one has its name, so
    that a crash at any moment leaves one of them.
    """
    merge = folder.is_dir() and not whole
    partial = folder / ".partial" if merge else partial_of(folder)
    try:
        with named_as(folder, partial):
            begin_folder(partial)
            yield partial
        if merge:
            _sync_files(partial)
            _merge(partial, folder, replaces, index)
        else:
            publish_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there.

    Raises `NotADirectoryError`, not `FileExistsError`, where a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        reason = os.strerror(errno.ENOTDIR)
        raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error


def begin_folder(partial: Path) -> None:
    """Make an empty temporary folder, for `publish_folder`."""
    shutil.rmtree(partial, ignore_errors=True)  # left by a crash
    partial.mkdir(parents=True)


def publish_folder(partial: Path, folder: Path) -> None:
    """Move a complete folder to its place and sync it; do nothing if it is there already.

    An existing one is kept as `folder.old` until the new one has its name.
    """
    if partial.exists() or not folder.exists():
        _sync_files(partial)
        _sync(partial)
        _rename_folder(partial, folder)
    _sync(folder.parent)
    shutil.rmtree(_old(folder), ignore_errors=True)


@contextmanager
def named_as(folder: Path, partial: Path) -> Generator[None]:
    """In this context, error messages name the requested folder, not the temporary one."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError or str(partial) not in str(error):
            raise
        raise InputError(str(error).replace(str(partial), str(folder))) from error
    except OSError as error:
        _name(error, partial, folder)
        raise


def _name(error: OSError, partial: Path, path: Path) -> None:
    """Put the requested path into a disk error that names a temporary path or none."""
    if error.errno is None:
        if not re.fullmatch(r"\d+ requested and \d+ written", str(error)):  # NumPy's words
            return
        error.errno, error.strerror = errno.ENOSPC, os.strerror(errno.ENOSPC)
    if error.filename is None or Path(error.filename).is_relative_to(partial):
        error.filename = str(path)


def remove_partial(folder: Path, pattern: str) -> None:
    """Remove the temporary folders left by a crash in `folder` for names matching `pattern`."""
    for leftover in folder.glob(f".{pattern}.partial"):
        shutil.rmtree(leftover)


def partial_of(path: Path) -> Path:
    """The temporary path for a file or folder being written."""
    return path.with_name(f".{path.name}.partial")


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _rename_folder(partial: Path, folder: Path) -> None:
    """Rename `partial` to `folder`; an existing folder is moved away first, still readable."""
    if not folder.exists():
        partial.rename(folder)
        return
    old = _old(folder)
    shutil.rmtree(old, ignore_errors=True)  # left by a crash, and replaced since
    folder.rename(old)
    try:
        partial.rename(folder)
    except OSError:
        old.rename(folder)
        raise


def publish(partial: Path, file: Path) -> None:
    """Move a complete file to its place, and sync it."""
    _sync(partial)
    partial.replace(file)
    _sync(file.parent)


def _merge(partial: Path, folder: Path, replaces: Sequence[str], index: str | None) -> None:
    new = sorted(file.name for file in partial.iterdir())
    if index in new and any((folder / name).exists() for name in new if name != index):
        (folder / index).unlink(missing_ok=True)
        _sync(folder)
    for name in sorted(new, key=lambda name: (name == index, name)):
        if (partial / name).is_dir():  # which would have to be empty to be replaced
            shutil.rmtree(folder / name, ignore_errors=True)
        (partial / name).replace(folder / name)
    _sync(folder)
    for pattern in replaces:
        for earlier in folder.glob(pattern):
            if earlier.name not in new:
                earlier.unlink()


def _sync_files(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        _sync(file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
