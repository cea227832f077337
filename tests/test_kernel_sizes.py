"""Every kernel at sizes of 0, 1, 2 and 3, in every layout, with poison in the memory around it.

A kernel that takes a wrong stride or reads past an end gives a wrong number or NaN here. Each is
compared with its definition in float64; gradients too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from addnorm.generate import graphs
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.differential import DifferentialCore
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.kernels import blocked_attention
from addnorm.nn.attention.scores import Additive, DotProduct
from addnorm.nn.choices import choices, use_choices
from addnorm.nn.context import Context
from addnorm.nn.convolution import Convolution
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.linear import LowRank, linear, multiplies_bfloat16, onednn
from addnorm.nn.masks import Causal, Dense, Full
from addnorm.nn.moe import MixtureOfExperts, can_group, grouped_feedforward
from addnorm.nn.norms import rms_norm
from addnorm.nn.recurrent import Recurrent
from addnorm.quantize.int4 import Int4Matrix, round_gptq, round_hqq, round_nearest, rounded_blocks
from addnorm.quantize.int8 import LARGEST, Int8Matrix, int8_matmul, int8_product, rounded
from addnorm.quantize.layers import DynamicRounding, RoundedByRange
from addnorm.training.loss import loss_and_gradient
from addnorm.training.muon import orthogonal
from addnorm.tuning import row_products

F32, F64, BF16, INT8 = torch.float32, torch.float64, torch.bfloat16, torch.int8
TOLERANCES = {F32: 2e-5, F64: 1e-10, BF16: 2e-2, torch.int32: 0.0}

M, N, K = (0, 1, 2, 3), (1, 2, 3, 17), (1, 2, 3, 17)
"""Rows, output features, input features; 17 is past one vector."""


class Sizes(NamedTuple):
    m: int
    n: int
    k: int


Shapes = Callable[[Sizes], Sequence[tuple[int, ...]]]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A function of tensors, its definition, and the shapes and types of what it takes."""

    run: Callable[..., Tensor]
    defined: Callable[..., Tensor]
    shapes: Shapes
    dtypes: Sequence[torch.dtype] = (F32,)
    gradient: bool = False
    tolerance: float | None = None
    choices: dict[str, Any] = field(default_factory=dict[str, Any])


def product_of(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    y = x @ w.T
    return y if b is None else y + b


def both(s: Sizes) -> list[tuple[int, ...]]:
    return [(s.m, s.k), (s.n, s.k)]


def with_bias(s: Sizes) -> list[tuple[int, ...]]:
    return [*both(s), (s.n,)]


def by_row(x: Tensor, w: Tensor) -> Tensor:
    (q, s), (p, t) = rounded(x.float()), rounded(w.float())
    return (q.double() @ p.double().T) * s.double()[:, None] * t.double()


def by_range(x: Tensor, w: Tensor) -> Tensor:
    scale = torch.tensor(3.0 / LARGEST)
    q = (x.float() / scale).round().clamp(-LARGEST, LARGEST)
    p, t = rounded(w.float())
    return (q.double() @ p.double().T) * scale.double() * t.double()


def by_int4(x: Tensor, w: Tensor) -> Tensor:
    return x.bfloat16().double() @ int4(w.float()).dequantized().double().T


def int4(w: Tensor) -> Int4Matrix:
    return Int4Matrix(round_nearest(w, 32), w.shape[1])


def packed(x: Tensor, w: Tensor) -> Tensor:
    return row_products._packed_product(x, row_products.packed_weight(w))


def low_rank(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return LowRank(a, b, 0.5).changed(w)


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def iterated(x: Tensor) -> Tensor:
    """The iterations on the longer side's product, as the paper writes them."""
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x - 4.775 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def softmax_of(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def heads_of(s: Sizes) -> list[tuple[int, ...]]:
    return [(2, 2, s.m, s.k), (2, 2, s.n, s.k), (2, 2, s.n, s.k)]


def at_least_one(shapes: Shapes) -> Shapes:
    return lambda s: shapes(s._replace(m=max(1, s.m)))


def attending(core: torch.nn.Module) -> Callable[..., Tensor]:
    return lambda q, k, v: core(q, k, v, Full())


def attention_of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax_of(q, k, v, q.shape[-1] ** -0.5)


PRODUCTS = {
    f"linear {name} {str(dtype)[6:]}{' bias' if bias else ''}": Kernel(
        run=linear,
        defined=product_of,
        shapes=with_bias if bias else both,
        dtypes=(dtype,),
        gradient=True,
        choices=chosen,
    )
    for name, chosen in (
        ("torch", {"product": "torch", "bias": "torch"}),
        ("onednn", {"product": "onednn", "bias": "fused"}),
    )
    for dtype in (F32, F64, *([BF16] if multiplies_bfloat16 else []))
    for bias in (False, True)
    if name == "torch" or onednn() is not None
}
KERNELS = {
    **PRODUCTS,
    "int8": Kernel(run=int8_matmul, defined=product_of, shapes=both, dtypes=(INT8,)),
    "int8 by row": Kernel(
        run=lambda x, w: int8_product(x, *rounded(w)), defined=by_row, shapes=both
    ),
    "int8 layer by row": Kernel(
        run=lambda x, w: DynamicRounding()(x, Int8Matrix(w)), defined=by_row, shapes=both
    ),
    "int8 layer by range": Kernel(
        run=lambda x, w: RoundedByRange(3.0)(x, Int8Matrix(w)), defined=by_range, shapes=both
    ),
    "int8 weights": Kernel(
        run=lambda x, w: Int8Matrix(w).times(x),
        defined=lambda x, w: x @ Int8Matrix(w.float()).dequantized().double().T,
        shapes=both,
    ),
    "int4 weights": Kernel(
        run=lambda x, w: int4(w).times(x), defined=by_int4, shapes=both, tolerance=2e-2
    ),
    "int4 weights, inputs in bytes": Kernel(
        run=lambda x, w: DynamicRounding()(x, int4(w)),
        defined=lambda x, w: by_int4(rounded_blocks(x), w),
        shapes=both,
        tolerance=2e-2,
    ),
    "loop of rows": Kernel(run=graphs.product, defined=product_of, shapes=with_bias),
    "low rank": Kernel(
        run=low_rank,
        defined=lambda a, b, w: w + 0.5 * b @ a,
        shapes=lambda s: [(max(1, s.m), s.k), (s.n, max(1, s.m)), (s.n, s.k)],
        gradient=True,
    ),
    "rms norm": Kernel(
        run=lambda x, gain: rms_norm(x, gain, 1e-6),
        defined=normed,
        shapes=lambda s: [(s.m, s.k), (s.k,)],
        gradient=True,
    ),
    "muon": Kernel(
        run=lambda x: orthogonal(x).float(),
        defined=iterated,
        shapes=lambda s: [(max(1, s.m), s.n, s.k)],
        tolerance=0.1,
    ),
    "loss": Kernel(
        run=lambda x: loss_and_gradient(x, torch.zeros(len(x), dtype=torch.long), 0.1)[1],
        defined=lambda x: x.softmax(-1) - smoothed(x),
        shapes=lambda s: [(max(1, s.m), s.k)],
    ),
    "blocked attention": Kernel(
        run=lambda q, k, v: blocked_attention(q, k, v, None),
        defined=lambda q, k, v: softmax_of(q, k, v, 1.0),
        shapes=at_least_one(heads_of),
        dtypes=(BF16,) * 3,
        gradient=True,
        tolerance=5e-2,
    ),
    **{
        f"{name} core {str(dtype)[6:]}": Kernel(
            run=attending(core),
            defined=attention_of,
            shapes=heads_of,
            dtypes=(dtype,) * 3,
            gradient=True,
        )
        for name, core in (
            ("sdpa", SDPACore()),
            ("flex", FlexCore()),
            ("eager", EagerCore()),
        )
        for dtype in (F32, BF16)
    },
}
if onednn() is not None:
    KERNELS["packed rows"] = Kernel(run=packed, defined=product_of, shapes=at_least_one(both))


def smoothed(x: Tensor) -> Tensor:
    y = torch.full_like(x, 0.1 / x.shape[-1])
    y[:, 0] += 0.9
    return y


def in_poison(values: Tensor) -> Tensor:
    """Row by row, between numbers that no result may contain."""
    poison = LARGEST if values.dtype is INT8 else float("nan")
    around = torch.full((values.numel() + 128,), poison, dtype=values.dtype)
    inside = around[64 : 64 + values.numel()].view(values.shape)
    return inside.copy_(values)


def transposed(values: Tensor) -> Tensor:
    return in_poison(values.mT.contiguous()).mT if values.ndim > 1 else in_poison(values)


def stepped(values: Tensor) -> Tensor:
    """Every second number of every second row."""
    poison = LARGEST if values.dtype is INT8 else float("nan")
    wide = torch.full([2 * n for n in values.shape], poison, dtype=values.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in values.shape)]
    return view.copy_(values)


def expanded(values: Tensor) -> Tensor:
    """The first row again and again, in the memory of one."""
    return in_poison(values[:1]).expand(values.shape) if values.ndim > 1 else in_poison(values)


LAYOUTS = {f.__name__: f for f in (in_poison, transposed, stepped, expanded)}


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype is INT8:
        return torch.randint(-LARGEST, LARGEST + 1, shape, dtype=INT8)
    return torch.randn(shape).to(dtype)


def spoil_memory() -> None:
    """Leave poison in the memory that is given to the next small tensors."""
    spoilt = [torch.full((n,), float("nan")) for n in (1, 4, 16, 64, 256) for _ in range(4)]
    del spoilt


def outputs(y: Tensor, inputs: Sequence[Tensor], gradient: bool) -> list[Tensor]:
    if not gradient:
        return [y]
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    return [y, *torch.autograd.grad(y, inputs, dy)]


def close(ours: Tensor, expected: Tensor, tolerance: float) -> bool:
    if ours.shape != expected.shape or not bool(ours.isfinite().all()):
        return False
    if not ours.numel():
        return True
    size = max(1.0, expected.abs().max().item())
    return bool(((ours.double() - expected.double()).abs() <= tolerance * size).all())


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_small_sizes_is_its_definition(name: str, layout: str) -> None:
    kernel = KERNELS[name]
    wrong = [
        sizes for sizes in map(Sizes._make, product(M, N, K)) if not holds(kernel, sizes, layout)
    ]
    assert wrong == []


def holds(kernel: Kernel, sizes: Sizes, layout: str) -> bool:
    shapes = kernel.shapes(sizes)
    dtypes = [*kernel.dtypes, *[kernel.dtypes[-1]] * (len(shapes) - len(kernel.dtypes))]
    given = [LAYOUTS[layout](drawn(*one)) for one in zip(shapes, dtypes, strict=True)]
    wide = [x.detach().clone().double().requires_grad_(kernel.gradient) for x in given]
    ours = [x.requires_grad_(kernel.gradient) for x in given]
    expected = outputs(kernel.defined(*wide), wide, kernel.gradient)
    spoil_memory()
    with use_choices(replace(choices(), **kernel.choices)):
        found = outputs(kernel.run(*ours), ours, kernel.gradient)
    tolerance = TOLERANCES[found[0].dtype] if kernel.tolerance is None else kernel.tolerance
    return all(close(a, b, tolerance) for a, b in zip(found, expected, strict=True))


def small_parts() -> Iterator[tuple[str, torch.nn.Module, int]]:
    """Parts that hold weights, with the width of what they read."""
    for width in (1, 2, 3):
        for cell in ("rnn", "lstm", "gru"):
            yield f"{cell} {width}", Recurrent(width, width, cell=cell, causal=True), width
        yield f"convolution {width}", Convolution(width, (1, 2, 3), causal=True), width
        for n in (1, 2, 3):
            experts = [GatedFeedForwardConfig(d_ff=width).build(width) for _ in range(n)]
            yield f"{n} experts {width}", MixtureOfExperts(width, experts, top_k=1), width
        for n_heads, core in (
            (2, DifferentialCore(DotProduct(1.0), width)),
            (1, EagerCore(Additive(1, width))),
        ):
            yield f"{type(core).__name__} {width}", Attending(core, n_heads), width


class Attending(torch.nn.Module):
    """A core that reads one tensor as queries, keys and values."""

    def __init__(self, core: torch.nn.Module, n_heads: int) -> None:
        super().__init__()
        self.core, self.n_heads = core, n_heads

    def forward(self, x: Tensor) -> Tensor:
        heads = x[:, None].repeat(1, self.n_heads, 1, 1)
        return self.core(heads, heads, heads, Full())


@pytest.mark.parametrize("name", [name for name, _, _ in small_parts()])
def test_a_part_of_small_sizes_is_itself_in_float64(name: str) -> None:
    """Whose kernels are others: oneDNN has none there."""
    part, width = next((part, width) for other, part, width in small_parts() if other == name)
    for batch, seq, grad in product((0, 1, 2, 3), (1, 2, 3), (False, True)):
        x = drawn((batch, seq, width), F32)
        ctx = Context.over(x, Causal())
        args = (ctx,) if isinstance(part, Recurrent | Convolution) else ()
        spoil_memory()
        with torch.set_grad_enabled(grad):
            ours = part.float()(in_poison(x), *args)
            expected = part.double()(x.double(), *args)
        assert close(ours, expected, 1e-4), (batch, seq, grad)


@pytest.mark.parametrize("counts", [c for c in product((0, 1, 2, 3), repeat=3) if sum(c) < 5])
@pytest.mark.parametrize("config", [FeedForwardConfig(d_ff=4), GatedFeedForwardConfig(d_ff=8)])
def test_grouped_experts_of_few_rows(config: Any, counts: tuple[int, ...]) -> None:
    experts = [config.build(4) for _ in counts]
    x = in_poison(torch.randn(sum(counts), 4))
    assert can_group(experts, x)
    ours = grouped_feedforward(x, experts, torch.tensor(counts))
    parts = zip(experts, x.split(list(counts)), strict=True)
    expected = [expert.double()(part.double()) for expert, part in parts]
    assert close(ours, torch.cat(expected), 1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 33])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_rounding_of_small_matrices(n: int, k: int) -> None:
    """To the nearest: off by half a step, of numbers to 7 by a whole one. GPTQ: no worse."""
    weight, x = in_poison(torch.randn(n, k)), torch.randn(50, k)
    nearest = round_nearest(weight, 32)
    off = Int4Matrix(nearest, k).dequantized() - weight
    assert (off.abs() <= 1.02 * weight.abs().amax(1, keepdim=True) / 8).all()
    compensated = Int4Matrix(round_gptq(weight, (x.T @ x).double(), 32), k).dequantized()
    assert ((compensated - weight) @ x.T).norm() <= 1.001 * (off @ x.T).norm() + 1e-6


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
@pytest.mark.parametrize("k", [1, 2, 3, 33])
def test_hqq_of_small_matrices(k: int) -> None:
    weight = in_poison(torch.randn(2, k))
    off = Int4Matrix(round_hqq(weight, 32), k).dequantized() - weight
    assert (off.abs() <= weight.abs().amax(1, keepdim=True) / 4).all()


@pytest.mark.parametrize("core", [SDPACore(), EagerCore(), FlexCore()])
@pytest.mark.parametrize(("n", "m"), list(product((1, 2, 3), repeat=2)))
def test_a_query_that_sees_nothing_is_zero_at_every_size(
    core: torch.nn.Module, n: int, m: int
) -> None:
    q, k, v = (in_poison(torch.randn(1, 2, size, 3)) for size in (n, m, m))
    allowed = torch.ones(1, 1, n, m, dtype=torch.bool)
    allowed[0, 0, 0] = False
    y = core(q, k, v, Dense(allowed))
    assert not y[:, :, 0].any()
    expected = attention_of(q.double(), k.double(), v.double())[:, :, 1:]
    assert close(y[:, :, 1:], expected, 1e-5)
