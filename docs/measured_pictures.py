"""The pictures of measured figures in the documentation, drawn from `benchmarks/results`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from addnorm.bench.decoding import BYTES, GPT2_MATRICES, SHORT, Precision
from addnorm.bench.training import (
    BASE,
    CHARACTERS,
    DECODER,
    TINY,
    DecoderSizes,
    TranslatorSizes,
)
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


@dataclass(frozen=True)
class Work:
    """What a benchmark does for a token: operations, and the least bytes of memory."""

    product: str
    """The type of its products, as `ceilings` of results name them."""
    flop: float
    bytes: float


def roofline() -> plt.Figure:
    """Each benchmark and both limits of its processor, products and memory, in the same run."""
    results = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("bench-*.json"))]
    names = sorted({_short(result["machine"]["processor"]) for result in results})
    names = [name for name in names if "limited" not in name]
    figure, axes = plt.subplots(1, len(names), figsize=(11, 4.6), sharey=True, layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        here = [result for result in results if _short(result["machine"]["processor"]) == name]
        points = sorted(_points(here), key=lambda point: point[1:])
        axis.plot([0.01, 1, 1000], [0.01, 1, 1], color="grey")
        for i, (_, x, y) in enumerate(points, start=1):
            axis.plot(x, y, "o", color="#4c78a8", markersize=4)
            place = (-3, 5 if i % 2 else -12)
            axis.annotate(str(i), (x, y), place, textcoords="offset points", fontsize=8)
        listed = "\n".join(f"{i} {label}" for i, (label, _, _) in enumerate(points, start=1))
        axis.text(0.98, 0.03, listed, transform=axis.transAxes, ha="right", va="bottom", fontsize=7)
        axis.set(xscale="log", yscale="log", title=name, ylim=(0.005, 1.6))
        axis.set(xlabel="operations for a byte; at 1 both limits meet")
    axes[0].set_ylabel("part of the processor's products in a second")
    return figure


def _points(results: list[Any]) -> Iterator[tuple[str, float, float]]:
    """A benchmark's name, its operations for a byte and a second, as parts of the limits'."""
    for result in results:
        limits = {name: found["median"] for name, found in result["ceilings"].items()}
        for label, work in WORKS.get(result["work"], {}).items():
            speeds = [c["median"] for c in result["contenders"] if c["name"].startswith(label)]
            peak, x = limits[work.product], work.flop / work.bytes
            kind = label.removeprefix("ours").strip()
            y = max(speeds) * work.flop / peak
            yield f"{result['work']} {kind}".strip(), x * limits["read"] / peak, y


def _training(sizes: DecoderSizes | TranslatorSizes, product: str) -> dict[str, Work]:
    """Training: weights, gradients and moments of AdamW are read or written ten times a step."""
    return {"ours": Work(product, sizes.training_flop, 10 * 4 * sizes.matrices / sizes.tokens)}


def _writing(matrices: int, texts: int, branches: int, *precisions: Precision) -> dict[str, Work]:
    """Writing: each weight is read once for all texts and their branches."""
    flop = 2.0 * matrices * branches
    return {
        f"ours {SHORT[p]}": Work(SHORT[p], flop, matrices * BYTES[p] / texts) for p in precisions
    }


WORKS = {
    "train-characters": _training(CHARACTERS, "f32"),
    "train-decoder": _training(DECODER, "bf16"),
    "train-decoder-float32": _training(DECODER, "f32"),
    "train-translator-tiny": _training(TINY, "f32"),
    "train-translator-base": _training(BASE, "bf16"),
    "decode": _writing(GPT2_MATRICES, 1, 1, "float32", "bfloat16", "int8"),
    "decode-batch": _writing(GPT2_MATRICES, 16, 1, "float32", "bfloat16", "int8"),
    "translate": _writing(BASE.decoder_matrices, 64, 4, "float32", "int8"),
}


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
