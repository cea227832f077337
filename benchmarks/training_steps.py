"""Time single steps of training in turn, of AddNorm and peers, each in its own process.

    python benchmarks/training_steps.py train-translator-tiny "ours" "plain torch" --seconds 60

`addnorm bench` runs every peer for five rounds, which takes many minutes; this compares a few in a
quiet minute. Figures go to `results/training_steps.json`, for each benchmark.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from timing import RESULTS, milliseconds, write_results

from addnorm.bench import ours, training
from addnorm.bench.benchmarks import named
from addnorm.compiler import separate_caches

NAME = "training_steps"
WARM_UP = 4


def serve(benchmark: str, name: str, pipe: Connection) -> None:
    """Answer each message by the seconds of a step."""
    training.timed = ours.timed = lambda step, units, **_: partial(seconds, step)
    separate_caches()
    [chosen] = [i for i in named([benchmark])[0].implementations if i.name == name]
    with TemporaryDirectory() as folder:
        step = chosen.build(Path(folder))
        for _ in range(WARM_UP):
            step()
        pipe.send(0.0)
        while pipe.recv():
            pipe.send(step())


def seconds(step: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def main() -> None:
    """Print and write medians, and the ratios to the first implementation in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmark")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    context, pipes = get_context("spawn"), dict[str, Connection]()
    for name in given.names:
        pipes[name], theirs = context.Pipe()
        context.Process(target=serve, args=(given.benchmark, name, theirs), daemon=True).start()
        pipes[name].recv()
    times = {name: list[float]() for name in pipes}
    end = time.perf_counter() + given.seconds
    while time.perf_counter() < end:
        for name, pipe in pipes.items():
            pipe.send(True)
            times[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    own = times[given.names[0]]
    figures = {
        name: {
            "ms": milliseconds(taken, 1),
            "ratio": round(median(a / b for a, b in zip(taken, own, strict=True)), 3),
            "steps": len(taken),
        }
        for name, taken in times.items()
    }
    file = RESULTS / f"{NAME}.json"
    before = json.loads(file.read_text("utf-8")) if file.exists() else {}
    write_results(NAME, {"benchmarks": before.get("benchmarks", {}) | {given.benchmark: figures}})


if __name__ == "__main__":
    main()
