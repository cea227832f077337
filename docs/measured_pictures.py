"""The pictures of measured figures in the documentation, drawn from `benchmarks/results`."""

import json
from pathlib import Path

from matplotlib import pyplot as plt

from addnorm.inspect.predictions import confusion_picture

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def speed() -> plt.Figure:
    """Ours beside the best peer in every benchmark: the ratio, its spread, and what we want."""
    rows = [
        (f"{_short(work['machine']['processor'])}\n{work['work']}: {target['target']}", target)
        for work in (json.loads(file.read_text()) for file in sorted(RESULTS.glob("bench-*.json")))
        for target in work["targets"]
        if " : " in target["target"] and not target["at_most"] and target["measured"]
    ]
    figure, ax = plt.subplots(figsize=(9, 0.6 + 0.45 * len(rows)), layout="constrained")
    for i, (_, target) in enumerate(rows):
        found = target["measured"]
        ax.barh(i, found["median"], color="#4c78a8")
        ax.plot([found["low"], found["high"]], [i, i], color="black", linewidth=1)
        ax.plot([target["must"]] * 2, [i - 0.4, i + 0.4], color="#e45756", linewidth=2)
    ax.axvline(1.0, color="grey", linewidth=0.8)
    ax.set(yticks=range(len(rows)), yticklabels=[name for name, _ in rows])
    ax.set(xlabel="times as fast as the peer (line: spread of rounds; red: what we must reach)")
    ax.invert_yaxis()
    return figure


def _short(processor: str) -> str:
    """A processor's name in a label; what kept it from its instructions is one word."""
    name, *facts = processor.split(", ")
    return f"{name}, limited" if any("=" in fact for fact in facts) else name


def window() -> plt.Figure:
    """What a window costs as texts grow, as benchmarks/window.py measured it."""
    rows = json.loads((RESULTS / "window.json").read_text(encoding="utf-8"))["rows"]
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    columns = {
        "train_ms": "ms to train on a text",
        "decode_ms_per_token": "ms to write a token",
        "peak_mib": "MiB at the peak of training",
    }
    for axis, (column, title) in zip(axes, columns.items(), strict=True):
        for layer in ("full", "full, alibi", "window", "window, alibi"):
            points = [(row["length"], row[column]) for row in rows if row["layer"] == layer]
            axis.plot(*zip(*points, strict=True), marker=".", label=layer)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.set_xticks([1024, 4096, 16384], ["1k", "4k", "16k"])
        axis.minorticks_off()
    axes[0].legend()
    return figure


def mixers() -> plt.Figure:
    """The cache and the time of mixers as texts grow, as benchmarks/mixers.py measured them."""
    rows = json.loads((RESULTS / "mixers.json").read_text(encoding="utf-8"))["rows"]
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    columns = {
        "cache_bytes": "bytes of cache of a text",
        "read_ms_per_token": "ms to read a token of a prompt",
        "write_ms_per_token": "ms to write a token",
    }
    for axis, (column, title) in zip(axes, columns.items(), strict=True):
        for mixer in dict.fromkeys(row["mixer"] for row in rows):
            points = [(row["length"], row[column]) for row in rows if row["mixer"] == mixer]
            axis.plot(*zip(*points, strict=True), marker=".", label=mixer)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.set_xticks([128, 2048, 32768], ["128", "2k", "32k"])
        axis.minorticks_off()
    axes[0].legend()
    return figure


def confusion(file: Path) -> None:
    """Which digits the quickest recipe for 99 % takes for which, as it was measured."""
    kept = RESULTS / "digits-99-confusion.json"
    counts = json.loads(kept.read_text("utf-8"))["taken for, by class"]
    labels = [str(digit) for digit in range(len(counts))]
    pairs = [
        (gold, taken)
        for gold, row in zip(labels, counts, strict=True)
        for taken, n in zip(labels, row, strict=True)
        for _ in range(n)
    ]
    confusion_picture(pairs, labels, file, "the digits of MNIST: 99.1 % of test are right")
