"""Runs an operator on an emulated ARM processor, where a compiler for it and qemu are installed."""

import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from addnorm.kernels.build import FLAGS, HERE, LEVELS

TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")
"""A compiler for ARM, and what runs its programs here."""

KINDS = [torch.float32, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
"""The types in the order of `ScalarType`, of `without_torch`."""

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason=f"needs {' and '.join(TOOLS)}"
)

on_each_level = pytest.mark.parametrize("level", ["scalar", "neon"])


def on_arm(
    source: str, level: str, folder: Path, *, operator: str | None = None
) -> Callable[..., list[Tensor]]:
    """A function that runs the operator of a source, on tensors and then numbers.

    It is compiled into the folder. The operator has the source's name by default.
    """
    compiler, runner = TOOLS
    program, place = folder / "run", Path(__file__).with_name("without_torch")
    defined = [f'-DSOURCE="{HERE / source}.cpp"', f"-DOPERATOR={operator or source}", f"-I{place}"]
    flags = [*(flag for flag in FLAGS if flag not in ("-shared", "-fPIC")), *LEVELS[level].flags]
    command = [compiler, *flags, "-static", *defined, str(place / "run.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)

    def run(*arguments: Tensor | float) -> list[Tensor]:
        given = b"".join(_written(each) for each in arguments if isinstance(each, Tensor))
        numbers = [str(each) for each in arguments if not isinstance(each, Tensor)]
        command = [runner, str(program), *numbers]
        done = subprocess.run(command, input=given, capture_output=True, check=True)
        return _read(done.stdout)

    return run


def _written(tensor: Tensor) -> bytes:
    """A tensor as `run.cpp` reads it."""
    facts = torch.tensor([KINDS.index(tensor.dtype), tensor.ndim, *tensor.shape]).numpy().tobytes()
    return facts + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _read(data: bytes) -> list[Tensor]:
    """The tensors that `run.cpp` has written."""
    tensors: list[Tensor] = []
    while data:
        kind, axes = _numbers(data[:16], torch.int64).tolist()
        begin = 16 + 8 * axes
        shape = _numbers(data[16:begin], torch.int64).tolist()
        end = begin + KINDS[kind].itemsize * math.prod(shape)
        tensors.append(_numbers(data[begin:end], KINDS[kind]).view(shape))
        data = data[end:]
    return tensors


def _numbers(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.tensor([*data], dtype=torch.uint8).view(dtype)
