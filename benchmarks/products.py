"""Which kernel multiplies matrices fastest on this processor, forward and backward.

    python benchmarks/products.py

Alternates the kernels that torch has for `x Wᵀ`, `dy W` and `dyᵀ x`, and int8 weights beside
bfloat16, on the shapes of small models; writes GFLOP/s as medians to `results/products.json`.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from addnorm.quantize.int8 import int8_matmul, rounded

SHAPES = [
    (16, 768, 3072),
    (64, 768, 3072),
    (256, 512, 2048),
    (768, 128, 512),
    (4096, 128, 256),
    (419, 128, 10000),
    (2048, 512, 2048),
    (4096, 384, 1536),
]
ROUNDS = 9
onednn = torch.ops.mkldnn._linear_pointwise


def kernels(rows: int, d_in: int, d_out: int) -> dict[str, Callable[[], Tensor]]:
    """Each way to compute a product of this shape."""
    x, w, dy = torch.randn(rows, d_in), torch.randn(d_out, d_in), torch.randn(rows, d_out)
    half = x.bfloat16(), w.bfloat16()
    values, _ = rounded(w)
    small, large = (dy.t(), x.t()) if d_out <= d_in else (x.t(), dy.t())

    def by_onednn(a: Tensor, b: Tensor) -> Tensor:
        return onednn(a, b, None, "none", [], "")

    return {
        "forward, F.linear": lambda: torch.nn.functional.linear(x, w),
        "forward, oneDNN": lambda: by_onednn(x, w),
        "gradient of x, matmul": lambda: dy @ w,
        "gradient of x, oneDNN": lambda: by_onednn(dy, w.t()),
        "gradient of W, matmul": lambda: dy.t() @ x,
        "gradient of W, oneDNN": lambda: by_onednn(small, large),
        "bfloat16": lambda: torch.nn.functional.linear(*half),
        "int8 weights, rows in int8": lambda: int8_matmul(rounded(x)[0], values),
        "int8 weights, rows in bfloat16": lambda: torch.nn.functional.linear(
            x.bfloat16(), values.bfloat16()
        ).float(),
    }


def measured(rows: int, d_in: int, d_out: int) -> dict[str, float]:
    """GFLOP/s of each kernel, their rounds in turn."""
    work = 2 * rows * d_in * d_out
    repeats = max(1, round(1e9 / work))
    found = kernels(rows, d_in, d_out)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for kernel in found.values():
        kernel()
    for _ in range(ROUNDS):
        for name, kernel in found.items():
            start = time.perf_counter()
            for _ in range(repeats):
                kernel()
            seconds[name].append((time.perf_counter() - start) / repeats)
    return {name: round(work / statistics.median(t) / 1e9, 1) for name, t in seconds.items()}


def main() -> None:
    """Measure all shapes and keep the figures."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    results = {" × ".join(map(str, shape)): measured(*shape) for shape in SHAPES}
    about = {
        "command": "python benchmarks/products.py",
        "unit": "GFLOP/s; shapes are rows × d_in × d_out",
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps({**about, "results": results}, indent=2, ensure_ascii=False)
    (Path(__file__).parent / "results" / "products.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
