"""Files of data for the readers."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text to a file by its name, compressed for `.gz`, and return the path."""

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return put
