"""Comparisons of each attention kernel alone.

A model always gives its core a score function. Here cores without one, and the kernels for each
dtype and size, are compared with the definition in float64.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.definition.cores import softmax
from addnorm.checking.long_texts import small_limits
from addnorm.nn.attention import EagerCore, FlexCore, SDPACore
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.masks import Causal, Dense, Evaluated, Full
from addnorm.nn.positions import Bias

N_ROWS, N_HEADS, N_SHARED, D_HEAD = 2, 4, 2, 6


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of queries and keys, and their dtype; `autocast` is mixed precision."""

    n_queries: int
    n_keys: int
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    blocks: bool = False


SIZES: Mapping[str, Sizes] = {
    "float64": Sizes(n_queries=5, n_keys=5, dtype=torch.float64),
    "one_query": Sizes(n_queries=1, n_keys=9),
    "few_queries": Sizes(n_queries=5, n_keys=9),
    "many_queries": Sizes(n_queries=17, n_keys=17),
    "bfloat16": Sizes(n_queries=17, n_keys=17, dtype=torch.bfloat16),
    "autocast": Sizes(n_queries=17, n_keys=17, dtype=torch.bfloat16, autocast=True),
    "autocast_blocks": Sizes(
        n_queries=33, n_keys=33, dtype=torch.bfloat16, autocast=True, blocks=True
    ),
}
CORES = {"sdpa": SDPACore, "eager": EagerCore, "flex": FlexCore}


def kernel_cells() -> list[str]:
    """Return the names of all kernel checks: every core with every size."""
    return [f"kernel/{core}/{size}" for core in CORES for size in SIZES]


def compare_kernel(name: str) -> CellResult:
    """Compare one core at one size with the definition, for every mask and scale."""
    return run_comparisons(name, kernel_comparisons(name))


def kernel_comparisons(name: str) -> Iterator[Comparison]:
    """Yield a comparison for every mask, with each scale, with and without bias."""
    _, core, size = name.split("/")
    sizes = SIZES[size]
    draw = torch.Generator().manual_seed(len(name))

    def drawn(heads: int, seq: int, width: int) -> Tensor:
        return torch.randn(N_ROWS, heads, seq, width, generator=draw, dtype=torch.float64)

    q = drawn(N_HEADS, sizes.n_queries, D_HEAD)
    k, v = (drawn(N_SHARED, sizes.n_keys, D_HEAD) for _ in range(2))
    q, k, v = (x.to(sizes.dtype) for x in (q, k, v))
    added = drawn(N_HEADS, sizes.n_queries, sizes.n_keys)
    for what, mask in _masks(sizes).items():
        for scale, bias in ((None, None), (0.3, None), (None, added)):
            module = CORES[core](None if scale is None else DotProduct(scale))
            of_tile = None if bias is None else _tile_of(bias)
            with (
                torch.autocast("cpu", torch.bfloat16) if sizes.autocast else nullcontext(),
                small_limits() if sizes.blocks else nullcontext(),
            ):
                ours = module(q, k, v, mask, of_tile)
            expected = _defined(q.double(), k.double(), v.double(), mask, scale, bias)
            tolerance = 0.03 if sizes.dtype is torch.bfloat16 else None
            where = f"{what}, scale {scale or 'by default'}{', with a bias' if of_tile else ''}"
            yield Comparison(where, ours, expected, tolerance)


def _tile_of(bias: Tensor) -> Bias:
    return lambda rows, keys: bias[:, :, rows, keys]


def _masks(sizes: Sizes) -> dict[str, Evaluated]:
    n, m = sizes.n_queries, sizes.n_keys
    allowed = (torch.arange(n)[:, None] * 3 + torch.arange(m)) % 4 > 0
    masks: dict[str, Evaluated] = {"full": Full(), "dense": Dense(allowed[None, None])}
    return masks | ({"causal": Causal()} if n == m else {})


def _defined(
    q: Tensor, k: Tensor, v: Tensor, mask: Evaluated, scale: float | None, bias: Tensor | None
) -> Tensor:
    n, m = q.shape[2], k.shape[2]
    seen = torch.ones(n, m, dtype=torch.bool)
    seen = seen.tril() if isinstance(mask, Causal) else seen
    seen = mask.allowed[0, 0] if isinstance(mask, Dense) else seen
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    out = torch.zeros_like(q)
    for row in range(N_ROWS):
        for h in range(N_HEADS):
            s = h * N_SHARED // N_HEADS
            scores = q[row, h] @ k[row, s].T * factor
            scores = scores if bias is None else scores + bias[row, h]
            out[row, h] = softmax(scores, seen) @ v[row, s]
    return out
