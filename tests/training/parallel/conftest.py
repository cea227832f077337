"""Scripts of several processes, and what they have written."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.training import tiny

Outcomes = Mapping[str, Mapping[str, float | str]]
"""By plan and cell of the matrix, its difference from one process, or why it is not split."""


def started(
    script: str, out: Path, processes: int, *words: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script of this folder in so many processes of torchrun's own launcher."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--log-dir", os.devnull]  # else it leaves a folder of temporary files
    return subprocess.run(
        [sys.executable, *launcher, "-m", f"tests.training.parallel.{script}", str(out), *words],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """The environment of the processes: our sources, and a thread for each."""
    path = f"{tiny.ROOT / 'src'}{os.pathsep}{tiny.ROOT}"
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def cells_of_two(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of chosen cells in two processes."""
    return _cells(tmp_path_factory, 2)


@pytest.fixture(scope="session")
def cells_of_four(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of chosen cells in four processes."""
    return _cells(tmp_path_factory, 4)


def _cells(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Outcomes:
    file = tmp_path_factory.mktemp("cells") / "cells.json"
    done = started("cells", file, processes)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())
