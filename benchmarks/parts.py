"""Our dropout and cross-entropy and those of torch: forward and backward, in turn.

    python benchmarks/parts.py

Prints the medians and ratios, and writes them to benchmarks/results/parts.json.
"""

from collections.abc import Callable
from statistics import median

import torch
from timing import milliseconds, seconds_in_turn, write_results
from torch.nn import functional as F

from addnorm.nn.attention import EagerCore, SDPACore
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Causal
from addnorm.training.loss import cross_entropy_sum

ROUNDS = 21


def compared(ours: Callable[[], object], torchs: Callable[[], object]) -> dict[str, float]:
    """Return the median milliseconds of both, run in turn, and their ratio with its quartiles."""
    times = seconds_in_turn({"ours": ours, "torch": torchs}, ROUNDS)
    ratios = sorted(b / a for a, b in zip(times["ours"], times["torch"], strict=True))
    return {
        "ours_ms": milliseconds(times["ours"]),
        "torch_ms": milliseconds(times["torch"]),
        "times_faster": round(median(ratios), 2),
        "from": round(ratios[ROUNDS // 4], 2),
        "to": round(ratios[-ROUNDS // 4], 2),
    }


def dropout() -> dict[str, float]:
    """Measure dropout of 0.3 on 100 × 30 × 128 numbers."""
    x = torch.randn(100, 30, 128, requires_grad=True)
    grad, layer = torch.randn_like(x), Dropout(0.3).train()
    return compared(lambda: layer(x).backward(grad), lambda: F.dropout(x, 0.3).backward(grad))


def cross_entropy() -> dict[str, float]:
    """Measure cross-entropy with label smoothing of 3,000 tokens among 8,000."""
    x = torch.randn(3000, 8000, requires_grad=True)
    y = torch.randint(0, 8000, (3000,))

    def torchs() -> None:
        F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum").backward()

    return compared(lambda: cross_entropy_sum(x, y, 0.1).backward(), torchs)


def attention_with_dropout() -> dict[str, float]:
    """Measure the eager core and SDPA, both with dropout of 0.1, on 100 × 4 heads × 30 × 32."""
    q, k, v = (torch.randn(100, 4, 30, 32, requires_grad=True) for _ in range(3))
    eager, fused = EagerCore(dropout=0.1).train(), SDPACore(dropout=0.1).train()
    return compared(
        lambda: eager(q, k, v, Causal()).sum().backward(),
        lambda: fused(q, k, v, Causal()).sum().backward(),
    )


def main() -> None:
    """Measure every part and keep the figures."""
    works = (dropout, cross_entropy, attention_with_dropout)
    write_results("parts", {work.__name__: work() for work in works})


if __name__ == "__main__":
    main()
