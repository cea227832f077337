"""Our dropout and cross-entropy beside torch's: forward and backward, in turn, in one run.

    python benchmarks/parts.py

Prints the medians and ratios, and writes them to benchmarks/results/parts.json.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch.nn import functional as F

from addnorm.nn.attention import EagerCore, SDPACore
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Causal
from addnorm.training.loss import cross_entropy_sum

ROUNDS = 21


def seconds(work: Callable[[], object]) -> float:
    """One run of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compared(ours: Callable[[], object], torchs: Callable[[], object]) -> dict[str, float]:
    """Median milliseconds of both, run in turn after a warm-up, and the ratio of each pair."""
    for work in (ours, torchs):
        work()
    pairs = [(seconds(ours), seconds(torchs)) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in pairs)
    return {
        "ours_ms": round(1e3 * statistics.median(a for a, _ in pairs), 2),
        "torch_ms": round(1e3 * statistics.median(b for _, b in pairs), 2),
        "times_faster": round(statistics.median(ratios), 2),
        "from": round(ratios[ROUNDS // 4], 2),
        "to": round(ratios[-ROUNDS // 4], 2),
    }


def dropout() -> dict[str, float]:
    """Dropout of 0.3 on 100 × 30 × 128 numbers."""
    x = torch.randn(100, 30, 128, requires_grad=True)
    grad, layer = torch.randn_like(x), Dropout(0.3).train()
    return compared(lambda: layer(x).backward(grad), lambda: F.dropout(x, 0.3).backward(grad))


def cross_entropy() -> dict[str, float]:
    """Cross-entropy with label smoothing of 3,000 tokens among 8,000."""
    x = torch.randn(3000, 8000, requires_grad=True)
    y = torch.randint(0, 8000, (3000,))

    def torchs() -> None:
        F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum").backward()

    return compared(lambda: cross_entropy_sum(x, y, 0.1).backward(), torchs)


def attention_with_dropout() -> dict[str, float]:
    """The eager core beside SDPA, both with dropout of 0.1, on 100 × 4 heads × 30 × 32."""
    q, k, v = (torch.randn(100, 4, 30, 32, requires_grad=True) for _ in range(3))
    eager, fused = EagerCore(dropout=0.1).train(), SDPACore(dropout=0.1).train()
    return compared(
        lambda: eager(q, k, v, Causal()).sum().backward(),
        lambda: fused(q, k, v, Causal()).sum().backward(),
    )


def main() -> None:
    """Measure every part and keep the figures."""
    result = {
        "command": " ".join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{work.__name__: work() for work in (dropout, cross_entropy, attention_with_dropout)},
    }
    print(json.dumps(result, indent=1))
    file = Path(__file__).parent / "results" / "parts.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
