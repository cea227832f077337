"""torch's compiler, with a cache of compiled code for each processor.

TorchInductor looks compiled code up by the traced operations, not by the instructions that it was
compiled for. Code for AVX-512 that is loaded under `ATEN_CPU_CAPABILITY=avx2`, or by an older
machine that shares the folder, ends the process or computes something else. Here every processor,
limit and version of torch has its own folder. All that torch compiles passes through this file;
`kernels.build` compiles our own operators.
"""

import getpass
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from subprocess import SubprocessError
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from addnorm.atomic import atomic_file
from addnorm.errors import InputError
from addnorm.machine import instructions, processor

if TYPE_CHECKING:
    import torch

NO_COMPILER = "compiling needs a C++ compiler: install g++, or run without compiling"

ADVICE = ": mend that, or run without compiling"

TORCHS_ERRORS = {
    "CppCompileError",
    "CUDACompileError",
    "TritonMissing",
    "GPUTooOldForTriton",
}
"""torch's errors about a compiler; their classes are imported with torch's compiler only."""

P = ParamSpec("P")
R = TypeVar("R")

FOLDER = re.compile(r"processor-[0-9a-f]{16}")
"""The name of a processor's folder."""

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The variables of the environment that choose folders; Triton's is inside the other by default."""


class CompilerError(InputError):
    """There is no compiler, it failed, or compiled code cannot be stored."""


def compile(function: Callable[P, R], **settings: Any) -> Callable[P, R]:
    """Return `torch.compile(function, **settings)`, with the caches of this processor.

    A call raises `CompilerError` if the compiler fails.
    """
    import torch

    separate_caches()
    compiled = torch.compile(function, **settings)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # inside another compiled function
            return compiled(*args, **kwargs)
        with compiler_errors(ADVICE):
            return compiled(*args, **kwargs)

    return call


def compile_ahead(program: "torch.export.ExportedProgram", settings: dict[str, Any]) -> bytes:
    """Compile an exported program ahead of time, and return the package.

    Raises `CompilerError` if there is no C++ compiler, or none that works.
    """
    check_compiler()
    separate_caches()
    from torch._inductor import aoti_compile_and_package

    archive = BytesIO()  # on a full disk torch's own writer ends the process
    with compiler_errors(ADVICE):
        aoti_compile_and_package(program, package_path=archive, inductor_configs=settings)
    return archive.getvalue()


@contextmanager
def compiler_errors(advice: str = "") -> Generator[None]:
    """In this context, raise `CompilerError` for errors of a compiler and of its files."""
    try:
        yield
    except Exception as error:
        if (reason := failure(error)) is None:
            raise
        raise CompilerError(reason + advice) from error


def failure(error: Exception) -> str | None:
    """The cause, if a compiler failed or could not write its files; None for other errors."""
    cause = vars(error).get("inner_exception", error)  # torch wraps the errors of its backend
    if isinstance(cause, OSError):
        place = f"{cause.filename}: " if cause.filename else ""
        return f"compiled code cannot be written: {place}{cause.strerror or cause}"
    if type(cause).__name__ == "InvalidCxxCompiler":
        return f"the C++ compiler {os.environ.get('CXX') or 'g++'} does not start"
    if "Failed to find C compiler" in str(cause):  # in the words of Triton
        return "there is no C compiler, which kernels for a GPU need: install gcc"
    if isinstance(cause, SubprocessError) or type(cause).__name__ in TORCHS_ERRORS:
        return f"the C++ compiler fails: {_first_error(cause)}"
    return None


def keep_compiled(file: Path, compiled: Callable[[], bytes]) -> None:
    """Write the result of `compiled` to a file, after creating the file's folder.

    Raises `CompilerError` if the folder or the file cannot be written.
    """
    with _writing_to(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    data = compiled()
    with _writing_to(file.parent), atomic_file(file, concurrent=True) as partial:
        partial.write_bytes(data)


@contextmanager
def _writing_to(folder: Path) -> Generator[None]:
    """In this context, raise `CompilerError` if compiled code cannot be written to the folder."""
    try:
        yield
    except OSError as error:
        raise CompilerError(
            f"{folder}: compiled graphs cannot be stored there ({error.strerror}): "
            "set ADDNORM_CACHE to another folder"
        ) from error


def _first_error(error: Exception) -> str:
    """The compiler's name, with the first line of its output that names an error, or the last."""
    facts = vars(error)
    command = facts.get("cmd") or ()
    output = facts.get("output") or ("no output" if command else str(error))
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    line = next((line for line in lines if "error" in line.lower()), lines[-1])
    return f"{command[0]}: {line}" if command else line


def check_compiler() -> str:
    """Return the C++ compiler. Raises `CompilerError` if there is none."""
    if (name := cxx()) is None:
        raise CompilerError(NO_COMPILER)
    return name


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return cxx() is not None


def cxx() -> str | None:
    """The C++ compiler named by `CXX`, or else a usual one; None if there is none."""
    chosen = os.environ.get("CXX")
    names = [chosen] if chosen else ["g++", "clang++", "c++"]
    return next((name for name in names if shutil.which(name)), None)


def separate_caches() -> None:
    """Give this process, and those that it starts, this processor's cache folders.

    That is a folder inside the one that `TORCHINDUCTOR_CACHE_DIR` or `TRITON_CACHE_DIR` chooses, or
    inside torch's own. To be called before any library that compiles by itself. Imports no torch.
    """
    os.environ.setdefault(CACHES[0], str(Path(gettempdir()) / f"torchinductor_{_user()}"))
    for name in CACHES:
        if chosen := os.environ.get(name):
            os.environ[name] = str(_inside(Path(chosen)))


def target() -> str:
    """A text with all that compiled code depends on: processor, instructions, limits, torch."""
    return "\n".join((processor(), instructions(), version("torch")))


def _user() -> str:
    with suppress(KeyError, OSError, ImportError):
        return getpass.getuser()
    return str(os.getuid())


def _inside(folder: Path) -> Path:
    """This processor's folder within `folder`, which may be another processor's."""
    outer = folder.parent if FOLDER.fullmatch(folder.name) else folder
    return outer / f"processor-{hashlib.sha256(target().encode()).hexdigest()[:16]}"
