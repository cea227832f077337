"""What a command opens and builds, and which files of ours it passes: the walks in CONTRIBUTING."""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.runs.tiny import write_recipe

import addnorm
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


def files_passed(words: list[str], until: str) -> set[str]:
    """The files of ours whose functions run in a command before the function `until` does.

    Not counted are bodies of modules and classes with what they call, and the files of `nn` and
    `models`: the walk leads to the model.
    """
    root, files = Path(addnorm.__file__).parent, set[str]()
    importing = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif code.co_qualname == until:
            sys.setprofile(None)
        elif event == "call" and not importing and code.co_flags & CO_OPTIMIZED:
            path = Path(code.co_filename)
            if path.is_relative_to(root):
                files.add(path.relative_to(root).as_posix())

    sys.setprofile(note)
    try:
        assert status(words) == 0
        assert sys.getprofile() is None, f"{until} did not run"
    finally:
        sys.setprofile(None)
    return {file for file in files if file.split("/")[0] not in ("nn", "models")}


def test_generate_passes_few_files_before_the_model(run_of: Callable[[str], Path]) -> None:
    """The bounds are those of today: they may fall, and a change that raises one says why."""
    words = ["generate", str(run_of("language")), "--prompt", "To be", "--max-new-tokens", "3"]
    before_it_is_built = files_passed(words, "DecoderConfig.build")
    assert len(before_it_is_built) <= 25, sorted(before_it_is_built)
    before_it_computes = files_passed(words, "decoder_step")
    assert len(before_it_computes) <= 38, sorted(before_it_computes)


def test_train_passes_few_files_before_the_first_step_of_the_optimiser(tmp_path: Path) -> None:
    """The bound is that of today: it may fall, and a change that raises it says why."""
    recipe = write_recipe(tmp_path, "language")
    words = ["train", str(recipe), "--out", str(tmp_path / "run"), "--train.steps", "1"]
    before_the_step = files_passed(words, "Adam.step")
    assert len(before_the_step) <= 67, sorted(before_the_step)
