"""One trained run of each task, made once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a task; not to be written to."""
    return cache(lambda task: train_tiny(tmp_path_factory.mktemp(task), task))
