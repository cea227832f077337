"""Which kernel multiplies matrices fastest on this processor, forward and backward.

    python benchmarks/products.py

Runs the kernels of torch and our operator for `x Wᵀ`, `dy W` and `dyᵀ x`, and int8 and bfloat16
weights, in turn on the shapes of small models; writes median GFLOP/s to `results/products.json`.
"""

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from timing import seconds_in_turn, write_results
from torch import Tensor

from addnorm.kernels.build import load_operator
from addnorm.kernels.linear import OPERATOR
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
operators = torch.ops.addnorm


def kernels(rows: int, d_in: int, d_out: int) -> dict[str, Callable[[], Tensor]]:
    """Return each way to compute a product of this shape."""
    x, w, dy = torch.randn(rows, d_in), torch.randn(d_out, d_in), torch.randn(rows, d_out)
    half = x.bfloat16(), w.bfloat16()
    values, _ = rounded(w)
    small, large = (dy.t(), x.t()) if d_out <= d_in else (x.t(), dy.t())

    def by_onednn(a: Tensor, b: Tensor) -> Tensor:
        return onednn(a, b, None, "none", [], "")

    def gradients(dy: Tensor, x: Tensor, *, of_x: bool) -> Tensor:
        dx, dw, _ = operators.linear_backward(dy, x, [w], of_x, not of_x)
        return dx if of_x else dw

    return {
        "forward, F.linear": lambda: torch.nn.functional.linear(x, w),
        "forward, oneDNN": lambda: by_onednn(x, w),
        "forward, operator": lambda: operators.linear(x, [w], None, False),
        "gradient of x, matmul": lambda: dy @ w,
        "gradient of x, oneDNN": lambda: by_onednn(dy, w.t()),
        "gradient of x, operator": lambda: gradients(dy, x, of_x=True),
        "gradient of W, matmul": lambda: dy.t() @ x,
        "gradient of W, oneDNN": lambda: by_onednn(small, large),
        "gradient of W, operator": lambda: gradients(dy, x, of_x=False),
        "bfloat16, operator": lambda: operators.linear(half[0], [w], None, True),
        "bfloat16": lambda: torch.nn.functional.linear(*half),
        "int8 weights, rows in int8": lambda: int8_matmul(rounded(x)[0], values),
        "int8 weights, rows in bfloat16": lambda: torch.nn.functional.linear(
            x.bfloat16(), values.bfloat16()
        ).float(),
    }


def measured(rows: int, d_in: int, d_out: int) -> dict[str, float]:
    """Return the GFLOP/s of each kernel, run in turn."""
    work = 2 * rows * d_in * d_out
    repeats = max(1, round(1e9 / work))
    works = {
        name: partial(repeat, kernel, repeats)
        for name, kernel in kernels(rows, d_in, d_out).items()
    }
    times = seconds_in_turn(works, ROUNDS)
    return {name: round(repeats * work / median(t) / 1e9, 1) for name, t in times.items()}


def repeat(kernel: Callable[[], Tensor], times: int) -> None:
    """Compute a product several times."""
    for _ in range(times):
        kernel()


def main() -> None:
    """Measure all shapes and keep the figures."""
    torch.manual_seed(0)
    load_operator(OPERATOR)
    torch.set_grad_enabled(False)
    results = {" × ".join(map(str, shape)): measured(*shape) for shape in SHAPES}
    about = {
        "unit": "GFLOP/s; shapes are rows × d_in × d_out",
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    write_results("products", {**about, "results": results})


if __name__ == "__main__":
    main()
