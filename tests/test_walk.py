"""The walks of CONTRIBUTING.md: which files of ours a command passes, and what it opens and builds.

A file counts as passed where a function of it is called from another file of ours; what libraries
call, such as the validation of a configuration, and what a model does inside, do not.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import addnorm
from addnorm.cli.main import status
from addnorm.models import DecoderModel

SOURCE = Path(addnorm.__file__).parent
INSIDE = ("models", "nn")

OPENED: list[list[str]] = []
"""The lists that hear of each file that is opened."""
sys.addaudithook(
    lambda event, args: (
        [some.append(str(args[0])) for some in OPENED] and None if event == "open" else None
    )
)


def room(frame: FrameType | None) -> Path | None:
    """The file of ours that a frame is in, below the package."""
    if frame is None or not frame.f_code.co_filename.startswith(f"{SOURCE}/"):
        return None
    return Path(frame.f_code.co_filename).relative_to(SOURCE)


@contextmanager
def passed(until: Any) -> Iterator[dict[str, None]]:
    """The files that are passed until a function is called, in their order."""
    files: dict[str, None] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        if frame.f_code is until.__code__:
            sys.setprofile(None)
            return
        here, caller = room(frame), room(frame.f_back)
        if here is None or caller in (None, here) or caller.parts[0] in INSIDE:
            return
        if here.parts[0] not in INSIDE and frame.f_code.co_name != "<module>":
            files[here.as_posix()] = None

    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(None)


@contextmanager
def opened() -> Iterator[list[str]]:
    names: list[str] = []
    OPENED.append(names)
    try:
        yield names
    finally:
        OPENED.remove(names)


def test_generate_opens_each_file_once_and_builds_once(
    run_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = run_of("language")
    built: list[object] = []
    plain = DecoderModel.__init__
    monkeypatch.setattr(
        DecoderModel,
        "__init__",
        lambda self, *args, **values: (built.append(self), plain(self, *args, **values))[1],
    )
    with opened() as names:
        assert status(["generate", str(folder), "--prompt", "To be", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("To be"[:0])
    times = Counter(name for name in names if name.startswith(f"{folder}/"))
    assert times == dict.fromkeys(
        (
            f"{folder}/{file}"
            for file in ("config.json", "digests.json", "model.safetensors", "tokenizer.json")
        ),
        1,
    )
    assert len(built) == 1
