"""The speed of our implementations in `addnorm bench` now and at an earlier commit, in turn.

    git worktree add --detach ../before COMMIT
    python benchmarks/commits.py ../before --rounds 5 [BENCHMARK ...]

Each side is a process with its own sources and its own copy of this file. Prints the median of
the ratios of speed, now / before, and writes them to benchmarks/results/commits.json after each
benchmark, next to the rows of the same two commits.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "benchmarks" / "results" / "commits.json"
PAUSE = 0.3


class Side:
    """A process that measures the sources in `folder`; a line in, a line out."""

    def __init__(self, folder: Path) -> None:
        self.commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
        ).stdout.strip()
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "benchmarks" / "commits.py"), "--serve"],
            env=os.environ | {"PYTHONPATH": str(folder / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: str) -> list[str] | float:
        """Send a question. Raises `RuntimeError` if the process ends."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the side of {self.commit} ended")
        return json.loads(answer)


def serve() -> None:
    """Measure our implementations of this process's sources, as asked on standard input."""
    from addnorm.bench.benchmarks import named
    from addnorm.bench.implementation import Implementation, Worker

    out, sys.stdout = sys.stdout, sys.stderr
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, Worker] = {}
        for line in sys.stdin:
            question = json.loads(line)
            if "benchmark" in question:
                for worker in workers.values():
                    worker.close()
                (benchmark,) = named([question["benchmark"]])
                if benchmark.prepare is not None:
                    prepare = Worker(Implementation(name="", build=benchmark.prepare), folder)
                    prepare.round()
                    prepare.close()
                ours = [
                    i
                    for i in benchmark.implementations
                    if not i.needs and not i.name.startswith("nn.")
                ]
                workers = {i.name: Worker(i, folder) for i in ours}
                answer: object = list(workers)
            else:
                result = workers[question["row"]].round()
                answer = result.units / result.seconds
            print(json.dumps(answer), file=out, flush=True)
        for worker in workers.values():
            worker.close()


def standing(now: Side, before: Side) -> dict[str, object]:
    """Return the rows of the same two commits that are in the file."""
    if not RESULTS.exists():
        return {}
    written = json.loads(RESULTS.read_text("utf-8"))
    same = (written["now"], written["before"]) == (now.commit, before.commit)
    return written["rows"] if same else {}


def main() -> None:
    """Measure both sides in turn, one row after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("benchmarks", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    from addnorm.bench.benchmarks import named

    now, before = Side(HERE), Side(arguments.before)
    rows = standing(now, before)
    for benchmark in named(arguments.benchmarks):
        ours, theirs = (side.ask(benchmark=benchmark.name) for side in (now, before))
        assert isinstance(ours, list)
        assert isinstance(theirs, list)
        for row in [name for name in ours if name in theirs]:
            ratios: list[float] = []
            for number in range(arguments.rounds):
                speeds: dict[Side, float] = {}
                for side in (now, before) if number % 2 else (before, now):
                    time.sleep(PAUSE)
                    speed = side.ask(row=row)
                    assert isinstance(speed, float)
                    speeds[side] = speed
                ratios.append(speeds[now] / speeds[before])
            figures = {
                "now / before": round(median(ratios), 3),
                "from": round(min(ratios), 3),
                "to": round(max(ratios), 3),
            }
            rows[f"{benchmark.name}: {row}"] = figures
            print(f"{benchmark.name}: {row}: {figures}", flush=True)
        RESULTS.write_text(
            json.dumps(
                {
                    "command": "python benchmarks/commits.py " + " ".join(sys.argv[1:]),
                    "date": date.today().isoformat(),
                    "now": now.commit,
                    "before": before.commit,
                    "rows": rows,
                },
                indent=1,
                ensure_ascii=False,
            )
            + "\n",
            "utf-8",
        )


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
