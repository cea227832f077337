"""torch's compiler, with a cache of compiled code for each processor.

TorchInductor looks compiled code up by the traced operations, not by the instructions that it was
compiled for. Code for AVX-512 that is loaded under `ATEN_CPU_CAPABILITY=avx2`, or by an older
machine that shares the folder, ends the process or computes something else. Here every processor,
limit and version of torch has its own folder. All compilation passes through this file.
"""

import getpass
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from addnorm.processor import instructions, processor

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")

FOLDER = re.compile(r"processor-[0-9a-f]{16}")
"""The name of a processor's folder."""

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The variables of the environment that choose folders; Triton's is inside the other by default."""


def compile(function: Callable[P, R], **settings: Any) -> Callable[P, R]:
    """Return `torch.compile(function, **settings)`, with the caches of this processor."""
    import torch

    separate_caches()
    return torch.compile(function, **settings)


def compile_ahead(program: "torch.export.ExportedProgram", settings: dict[str, Any]) -> bytes:
    """Compile an exported program ahead of time, and return the package."""
    separate_caches()
    from torch._inductor import aoti_compile_and_package

    archive = BytesIO()  # on a full disk torch's own writer ends the process
    aoti_compile_and_package(program, package_path=archive, inductor_configs=settings)
    return archive.getvalue()


def separate_caches() -> None:
    """Set the caches of this process, and of those that it starts, to this processor's folder.

    That is a folder inside the one that `TORCHINDUCTOR_CACHE_DIR` or `TRITON_CACHE_DIR` chooses, or
    inside torch's own. To be called before any library that compiles by itself. Imports no torch.
    """
    os.environ.setdefault(CACHES[0], str(Path(gettempdir()) / f"torchinductor_{_user()}"))
    for name in CACHES:
        if chosen := os.environ.get(name):
            os.environ[name] = str(_inside(Path(chosen)))


def target() -> str:
    """A text of what compiled code depends on: processor, instructions, limits, torch's version."""
    return "\n".join((processor(), instructions(), version("torch")))


def _user() -> str:
    with suppress(KeyError, OSError, ImportError):
        return getpass.getuser()
    return str(os.getuid())


def _inside(folder: Path) -> Path:
    """This processor's folder inside `folder`, or in place of another processor's folder."""
    outer = folder.parent if FOLDER.fullmatch(folder.name) else folder
    return outer / f"processor-{hashlib.sha256(target().encode()).hexdigest()[:16]}"
