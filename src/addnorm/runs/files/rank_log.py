"""The output of processes other than the leading one: `ranks/N.log` in the run folder."""

import io
import sys
from pathlib import Path


class RankLog(io.TextIOBase):
    """A stream into `folder/ranks/N.log`, which is written once the run has begun.

    What comes before is kept until then, so that a run that is refused leaves no file.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.file = folder / "ranks" / f"{rank}.log"
        self._before = ""

    @property
    def has_begun(self) -> bool:
        """Whether the run has begun: its settings are in the folder."""
        return (self.folder / "config.json").exists()

    def write(self, text: str) -> int:
        """Append a text."""
        self._before += text
        if self.has_begun:
            self.file.parent.mkdir(exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(self._before)
            self._before = ""
        return len(text)


def speak_into(log: RankLog) -> None:
    """Redirect the output of this process to the log."""
    sys.stdout = sys.stderr = log
