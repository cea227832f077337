"""Early exits: accuracy, mean depth and time of a classifier at each entropy threshold.

    addnorm train benchmarks/early_exit.toml --data.root DATA --out runs/early-exit
    python benchmarks/early_exit.py runs/early-exit DATA > benchmarks/results/early_exit.json

Evaluates the test split at each threshold and with every layer, in turn; times are medians of
rounds. Draws benchmarks/results/early_exit.svg.
"""

import json
import platform
import statistics
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from addnorm.data.batches.buckets import build_loaders
from addnorm.generate.early_exit import EarlyExit, EntropyRule
from addnorm.runs.evaluation import Evaluator, data_of
from addnorm.runs.run import Run

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.65)
ROUNDS = 3
PICTURE = Path(__file__).parent / "results" / "early_exit.svg"


def measure(run: Run) -> list[dict[str, float | str]]:
    """A row for the whole model, and one for each threshold."""
    data = data_of(run)
    loaders = build_loaders(run.recipe.train.batching, data.encoded)
    evaluator = Evaluator.of("test", data, loaders, run.recipe.eval)
    assert evaluator is not None
    kinds: dict[str, float | None] = {"every layer": None}
    kinds |= {f"entropy:{threshold}": threshold for threshold in THRESHOLDS}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    rows: dict[str, dict[str, float | str]] = {}
    for _ in range(ROUNDS + 1):
        for name, threshold in kinds.items():
            early = None if threshold is None else EarlyExit(EntropyRule(threshold))
            start = time.perf_counter()
            scores = replace(evaluator, early=early).evaluate(run.model).scores
            times[name].append(time.perf_counter() - start)
            depth = run.recipe.model.n_layers if early is None else early.mean_depth
            rows[name] = {"exit": name, "accuracy": scores["accuracy"], "mean_depth": depth}
    whole = statistics.median(times["every layer"][1:])
    for name, row in rows.items():
        row["seconds"] = round(statistics.median(times[name][1:]), 4)
        row["speedup"] = round(whole / statistics.median(times[name][1:]), 2)
    return list(rows.values())


def draw(rows: list[dict[str, float | str]]) -> None:
    """The curve of accuracy against speed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot([row["speedup"] for row in rows], [row["accuracy"] for row in rows], "o-")
    for row in rows:
        axes.annotate(str(row["exit"]), (row["speedup"], row["accuracy"]), fontsize=7)  # pyright: ignore
    axes.set_xlabel("speed, times that of every layer")
    axes.set_ylabel("test accuracy, %")
    figure.tight_layout()
    figure.savefig(PICTURE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = Run.open(Path(sys.argv[1]), {"data.root": json.dumps(sys.argv[2])})
    rows = measure(run)
    draw(rows)
    about = {"date": f"{date.today()}", "machine": platform.processor(), "rounds": ROUNDS}
    print(json.dumps({**about, "torch": torch.__version__, "rows": rows}, indent=1))
