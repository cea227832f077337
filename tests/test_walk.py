"""What a command opens and builds, and which files of ours it passes: the walks in CONTRIBUTING."""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from addnorm.cli.main import status
from addnorm.models import DecoderModel

LISTENING: list[list[str]] = []
"""The lists to which the name of each file is added that is opened."""


def note_opened(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        for names in LISTENING:
            names.append(str(args[0]))


sys.addaudithook(note_opened)


@contextmanager
def opened() -> Generator[list[str]]:
    names: list[str] = []
    LISTENING.append(names)
    try:
        yield names
    finally:
        LISTENING.remove(names)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[DecoderModel]:
    """Every decoder that is built."""
    models: list[DecoderModel] = []
    plain = DecoderModel.__init__

    def build(model: DecoderModel, *args: Any, **values: Any) -> None:
        models.append(model)
        plain(model, *args, **values)

    monkeypatch.setattr(DecoderModel, "__init__", build)
    return models


def test_generate_opens_each_file_once_and_builds_the_model_once(
    run_of: Callable[[str], Path], built: list[DecoderModel]
) -> None:
    folder = run_of("language")  # which trains it, where no test has
    built.clear()
    with opened() as names:
        assert status(["generate", str(folder), "--prompt", "To be", "--max-new-tokens", "3"]) == 0
    inside = Counter(Path(name).name for name in names if Path(name).parent == folder)
    files = ("config.json", "digests.json", "model.safetensors", "tokenizer.json")
    assert inside == dict.fromkeys(files, 1)
    assert len(built) == 1
