"""Muon: an optimiser whose momentum matrices are made nearly orthogonal."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.nn.linear import multiplies_natively
from addnorm.training.parallel.tensors import by_matrix, piece_of, whole_shape
from addnorm.training.torch_optimizers import without_compiler

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The quintic's `a, b, c`, steepest at zero: five iterations map 0.001 near 1."""
AT_ONCE = 2**22
"""The most values of one shape that are iterated together, which bounds the memory of copies."""


@without_compiler
class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): each matrix moves along its momentum, made nearly orthogonal.

    `B ← μB + (1 - μ)G`, `U = μB + (1 - μ)G` (Nesterov), and
    `W ← (1 - lr·λ)W - lr·√max(1, rows / columns)·orthogonal(U)`.

    The rule and the saved state are those of `torch.optim.Muon`. Three things differ: matrices of
    one shape are iterated together; processes that hold a part of each matrix iterate some of the
    matrices each; and where a processor has no products of bfloat16 the iterations are in float32,
    since emulated ones take a hundred times as long there.

    Raises `ValueError` for a parameter that is not a matrix.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(
                        f"Muon changes matrices, and one parameter has shape {[*parameter.shape]}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the weights once; `closure`, if given, computes the loss and the gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for alike in of_one_shape(p for p in group["params"] if p.grad is not None):
                self._update(alike, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [w.grad for w in weights if w.grad is not None]
        momenta = [self._momentum(w) for w in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        updates = torch.stack(gradients).lerp_(torch.stack(momenta), group["momentum"])
        rows, columns = whole_shape(weights[0])
        rate = group["lr"] * max(1, rows / columns) ** 0.5
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        directions = by_matrix(orthogonal, updates, weights[0]).to(updates.dtype).unbind()
        torch._foreach_add_(weights, directions, alpha=-rate)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        return state["momentum_buffer"]


def of_one_shape(weights: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of equal weights (shape, dtype, device) of at most `AT_ONCE` values."""
    groups: defaultdict[object, list[Tensor]] = defaultdict(list)
    for weight in weights:
        groups[whole_shape(weight), piece_of(weight), weight.dtype, weight.device].append(weight)
    for alike in groups.values():
        size = max(1, AT_ONCE // whole_shape(alike[0]).numel())
        yield from (alike[i : i + size] for i in range(0, len(alike), size))


def orthogonal(
    matrices: Float[Tensor, "n rows columns"], steps: int = 5, eps: float = 1e-7
) -> Float[Tensor, "n rows columns"]:
    """Approximately `UV'` for each matrix `USV'`: singular values become 0.7 to 1.2.

    Newton–Schulz iterations from `X = G / ‖G‖`: `A = XXᵀ`, `X ← aX + (bA + cA²)X`. The result is
    of the type they ran in: bfloat16 if the device multiplies it, else that of the matrices.
    """
    fast = multiplies_natively(torch.bfloat16, matrices.device)
    x = matrices.bfloat16() if fast and matrices.dtype is torch.float32 else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
