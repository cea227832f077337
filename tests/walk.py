"""Run a command, and print the files of ours that it passes until the first step of an optimiser.

A file is passed when a function in it runs. Its module's body does not count, nor what runs while
modules are imported. One line for each file, in the order in which they are passed.
"""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

import addnorm
from addnorm.cli.main import status

SOURCES = Path(addnorm.__file__).parent
ANSWER = "passed: "


class ArrivedError(BaseException):
    """The step that ends the walk."""


def arrive(*_: Any) -> None:
    raise ArrivedError


def main(words: list[str]) -> None:
    passed: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or frame.f_code.co_name == "<module>" or file in passed:
            return
        if file.startswith(f"{SOURCES}/") and not importing(frame):
            passed[file] = None

    register_optimizer_step_pre_hook(arrive)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        status(words)
    except ArrivedError:
        pass
    finally:
        sys.setprofile(None)
    for file in passed:
        print(ANSWER + Path(file).relative_to(SOURCES).as_posix())


def importing(frame: FrameType) -> bool:
    """Whether a frame runs because a module is imported."""
    above = frame.f_back
    while above is not None and "importlib._bootstrap" not in above.f_code.co_filename:
        above = above.f_back
    return above is not None


if __name__ == "__main__":
    main(sys.argv[1:])
