"""Operators in C++, compiled for this processor on first use and kept in the cache folder.

Whoever chooses an operator loads it. A forward uses loaded operators only, and compiles nothing.

`ADDNORM_OPERATORS` chooses the instructions they are compiled for, or `off`: then whatever has an
operator computes in another way. Without it they are the widest of the processor, within
`ATEN_CPU_CAPABILITY`.
"""

import hashlib
import os
import platform
import subprocess
import threading
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from addnorm.compiler import (
    CompilerError,
    check_compiler,
    compiler_errors,
    keep_compiled,
    target,
)
from addnorm.errors import MissingOperator, check_choice
from addnorm.files import cache_folder
from addnorm.machine import instructions

VARIABLE = "ADDNORM_OPERATORS"
"""The variable of the environment that chooses the instructions."""

HERE = Path(__file__).parent

_loaded: set[str] = set()
_loading = threading.Lock()


class Level(NamedTuple):
    """A set of vector instructions, as the processor and the compiler name it."""

    needs: frozenset[str]
    flags: tuple[str, ...]


def _x86(*names: str) -> Level:
    listed = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}
    return Level(
        frozenset(listed.get(name, name) for name in names), tuple(f"-m{name}" for name in names)
    )


_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")

LEVELS = {
    "scalar": Level(frozenset(), ("-DADDNORM_SCALAR",)),
    "neon": Level(frozenset({"asimd"}), ()),
    "avx2": _x86(*_AVX2),
    "avx512": _x86(*_AVX512),
    "vnni": _x86(*_AVX512, "avx512vnni"),
    "bf16": _x86(*_AVX512, "avx512vnni", "avx512bf16"),
}
"""The instructions that operators are compiled for, the widest last."""

WITHIN = {
    "default": {"scalar"},
    "avx2": {"scalar", "avx2"},
}
"""The levels within a limit of `ATEN_CPU_CAPABILITY`."""

FLAGS = (
    "-std=c++20", "-O3", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-Wno-psabi",
)  # fmt: skip


def levels() -> list[str]:
    """The vector instructions of this processor, within `ATEN_CPU_CAPABILITY`, the widest last."""
    listed = {*instructions().split()}
    if platform.machine() == "arm64":  # macOS lists nothing
        listed.add("asimd")
    limit = WITHIN.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), {*LEVELS})
    return [name for name, level in LEVELS.items() if level.needs <= listed and name in limit]


def level() -> str | None:
    """The widest usable vector instructions for our operators; None to use none.

    Raises `InputError` if `ADDNORM_OPERATORS` names none of this processor's.
    """
    possible = levels()
    chosen = os.environ.get(VARIABLE, possible[-1])
    if chosen == "off":
        return None
    check_choice(f"on this processor, {VARIABLE}", chosen, ["off", *possible])
    return chosen


def load_operator(name: str) -> None:
    """Load an operator into torch, once.

    Compiling takes some seconds, once: the library is kept in the folder of caches. Raises
    `CompilerError` if there is no C++ compiler, none that works, or no folder to write to, or if
    `ADDNORM_OPERATORS` is off; `InputError` for another mistake in it.
    """
    if name in _loaded:
        return
    with _loading:  # or threads would compile it twice
        if name not in _loaded:
            _load(name)
            _loaded.add(name)


def is_loaded(name: str) -> bool:
    """Whether an operator is loaded already; this call loads and starts nothing."""
    return name in _loaded


def _load(name: str) -> None:
    import torch

    if (chosen := level()) is None:
        raise CompilerError(f"{VARIABLE} is off")
    flags = (*FLAGS, *LEVELS[chosen].flags)
    sources = [HERE / f"{name}.cpp", *sorted(HERE.glob("*.h"))]
    digest = hashlib.sha256(f"{target()}\n{flags}\n".encode())
    for source in sources:
        digest.update(source.read_bytes())
    library = _folder() / f"{name}-{chosen}-{digest.hexdigest()[:32]}.so"
    if library.exists():
        with suppress(OSError):  # a damaged one is built again
            return torch.ops.load_library(str(library))
    keep_compiled(library, lambda: _library(sources[0], flags))
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise CompilerError(f"a compiled operator cannot be loaded: {error}") from error


@cache
def has_operator(name: str) -> bool:
    """Load an operator; return whether that succeeded. If not by choice, a warning says why not."""
    if level() is None:
        return False
    try:
        load_operator(name)
    except CompilerError as error:
        warnings.warn(f"{error}; {name} is computed without it", MissingOperator, stacklevel=2)
        return False
    return True


def _folder() -> Path:
    try:
        return cache_folder()
    except RuntimeError as error:  # no home
        raise CompilerError(f"{error} Set ADDNORM_CACHE to a folder") from error


def _library(source: Path, flags: tuple[str, ...]) -> bytes:
    """Compile an operator to a shared library."""
    import torch

    compiler, root = check_compiler(), Path(torch.__file__).parent
    with TemporaryDirectory() as folder:
        library = Path(folder) / "operator.so"
        command = [compiler, *flags, f"-isystem{root / 'include'}", str(source)]
        command += [f"-L{root / 'lib'}", "-ltorch_cpu", "-o", str(library)]
        with compiler_errors():
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return library.read_bytes()
