"""Running several commands in one process, since importing torch dominates their time."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RUN_ALL = """
import json, sys
from addnorm.cli.main import status
for words in json.loads(sys.stdin.read()):
    print("$ addnorm", *words, file=sys.stderr, flush=True)
    if code := status(words):
        sys.exit(code)
"""


def run_all(
    commands: Sequence[Sequence[str]], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Up to the first that fails; standard error names each before what it says."""
    return subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps([list(words) for words in commands]),
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def messages(stderr: str) -> list[str]:
    """The lines of standard error without signs of life, which a slow machine adds."""
    return [line for line in stderr.splitlines() if not line.endswith(" s so far")]
