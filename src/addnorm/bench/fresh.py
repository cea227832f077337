"""Start-up time of new processes; without torch, to keep this process small."""

import resource
import subprocess
import sys
import time
from pathlib import Path

from addnorm.bench.implementation import Round, Run


def started(_: Path, *, statement: str) -> Run:
    """Rounds that each run a statement in a new Python process."""
    command = [sys.executable, "-c", statement]

    def run() -> Round:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return Round(seconds, 1, {"peak_mib": peak / (2**20 if sys.platform == "darwin" else 1024)})

    return run
