"""Fresh processes: what starting costs, free of torch so that this process takes little itself."""

import resource
import subprocess
import sys
import time
from pathlib import Path

from addnorm.bench.implementation import Round, Run


def started(_: Path, *, statement: str) -> Run:
    """Rounds of a new Python that runs a statement and ends."""
    command = [sys.executable, "-c", statement]

    def run() -> Round:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return Round(seconds, 1, {"peak_mib": peak / (2**20 if sys.platform == "darwin" else 1024)})

    return run
