"""Cores against the formula in float64, forward and backward, for every mask."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import pytest
import torch
from tests.contracts import CORE_RECORDS, SOFTMAX_CORES, build_core, check_records, named
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from addnorm.nn.attention import (
    CoreConfig,
    EagerCore,
    EagerCoreConfig,
    FlexCore,
    SDPACore,
    multihead,
)
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.masks import Causal, Dense, Full, Padding, Segments, Window
from addnorm.nn.positions.position import Bias
from addnorm.nn.types import HeadShape

BATCH, HEADS, WIDTH = 2, 4, 8
VALID = torch.tensor(
    [[False, False, True, True, True, True], [True, True, True, False, False, False]]
)
IDS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
EMPTY = torch.ones(BATCH, 1, 6, 6, dtype=torch.bool)
EMPTY[0, 0, 2] = EMPTY[1, 0, 0] = EMPTY[1, 0, 5] = False
ALL = torch.arange(6)

MASKS = {
    "full": (Full(), ALL),
    "causal": (Causal(), ALL),
    "chunk": (Causal(), ALL[4:]),
    "cross": (Full(), ALL[:4]),
    "window": (Causal() & Window(3), ALL),
    "both sides": (Window(2), ALL),
    "padding": (Padding(VALID), ALL),
    "causal and padding": (Causal() & Padding(VALID), ALL),
    "segments": (Causal() & Segments(IDS), ALL),
    "empty rows": (Dense(EMPTY), ALL),
}


def formula(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Vaswani et al. 2017, eq. 1, one query at a time, in float64."""
    group = q.shape[1] // k.shape[1]
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                keys = allowed[b, 0, i].nonzero().flatten()
                scores = k[b, h // group, keys] @ q[b, h, i] / math.sqrt(q.shape[-1])
                if bias is not None:
                    scores = scores + bias.expand(len(q), q.shape[1], -1, -1)[b, h, i, keys]
                # Without a key the sum is empty: zero, by the definition of this package.
                weights = scores.exp() / scores.exp().sum() if len(keys) else scores
                rows.append(weights @ v[b, h // group, keys])
    return torch.stack(rows).view(*q.shape[:3], -1)


def built(core: CoreConfig, dropout: float = 0.0) -> nn.Module:
    """The core with scaled dot products of heads of the width used here."""
    return build_core(core, dropout, DotProduct(WIDTH**-0.5))


def tiles(bias: Tensor | None) -> Bias | None:
    """A bias at hand, in the form in which a core asks for it."""
    return None if bias is None else lambda rows, keys: bias[:, :, rows, keys]


Problem = tuple[list[Tensor], Full | Causal | Dense, list[Tensor]]


@cache
def problem(name: str, kv_heads: int, biased: bool) -> Problem:
    """Inputs that every type holds exactly, the mask, and the formula's output and gradients."""
    torch.manual_seed(len(name) + kv_heads)
    mask, q_slots = MASKS[name]
    q = torch.randn(BATCH, HEADS, len(q_slots), WIDTH)
    k, v = torch.randn(2, BATCH, kv_heads, 6, WIDTH)
    inputs = [q, k, v, *([torch.randn(1, HEADS, len(q_slots), 6)] if biased else [])]
    inputs = [x.bfloat16() for x in inputs]
    allowed = mask.dense(q_slots, ALL, BATCH).expand(BATCH, 1, -1, -1)
    wanted = run(partial(formula, allowed), inputs, torch.float64)
    return inputs, mask.on(q_slots, ALL, BATCH), wanted


def run(f: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The output, then the gradient of each input for one and the same gradient of the output."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
    out = f(*leaves)
    seed = torch.Generator().manual_seed(1)
    out.backward(torch.randn(out.shape, generator=seed).bfloat16().to(out))
    return [out, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def test_every_core_has_a_record() -> None:
    check_records(CoreConfig, CORE_RECORDS)


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_equals_the_formula(core: CoreConfig, name: str, kv_heads: int, biased: bool) -> None:
    inputs, mask, wanted = problem(name, kv_heads, biased)
    module = built(core)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        got = run(lambda q, k, v, bias=None: module(q, k, v, mask, tiles(bias)), inputs, dtype)
        assert len(got) == len(wanted) == 1 + len(inputs)
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == dtype
            assert (a.double() - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("core", [SDPACore, FlexCore, EagerCore])
@pytest.mark.parametrize("q_seq", [1, 2, 8, 9, 20])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_core_without_a_score_scales_the_products(
    core: type[SDPACore | EagerCore], q_seq: int, kv_heads: int, dtype: torch.dtype
) -> None:
    """By 1/√d_head, for few queries and for many: `SDPACore()` is the paper's attention."""
    q = torch.randn(BATCH, HEADS, q_seq, WIDTH, dtype=dtype)
    k, v = torch.randn(2, BATCH, kv_heads, 20, WIDTH, dtype=dtype)
    k64, v64 = (x.double().repeat_interleave(HEADS // kv_heads, 1) for x in (k, v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k64) / WIDTH**0.5
    want = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v64)
    assert_close(core()(q, k, v, Full()).double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("q_seq", [1, 6, 64])
def test_a_row_with_nothing_to_see_is_zero(
    core: CoreConfig, biased: bool, dtype: torch.dtype, q_seq: int
) -> None:
    q = torch.randn(2, 4, q_seq, 16).to(dtype).requires_grad_()
    kv = [torch.randn(2, 4, 64, 16).to(dtype).requires_grad_() for _ in range(2)]
    bias = torch.randn(1, 4, q_seq, 64).to(dtype).requires_grad_() if biased else None
    allowed = torch.rand(2, 1, q_seq, 64) > 0.5
    allowed[0, 0, 0] = allowed[1] = False
    out = built(core)(q, *kv, Dense(allowed), tiles(bias))
    assert torch.equal(out[0, :, 0], torch.zeros_like(out[0, :, 0]))
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    out.sum().backward()
    for leaf in (q, *kv, bias):
        if leaf is not None:
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()
    assert q.grad is not None
    assert torch.equal(q.grad[1], torch.zeros_like(q.grad[1]))


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize("garbage", [1e30, -1e30, 0.0])
def test_masked_keys_and_values_change_no_bit(core: CoreConfig, garbage: float) -> None:
    q, k, v = torch.randn(3, BATCH, HEADS, 6, WIDTH)
    mask = (Causal() & Padding(VALID)).on(ALL, ALL, BATCH)
    hidden = ~VALID[:, None, :, None]
    module = built(core)
    dirty = module(q, k.masked_fill(hidden, garbage), v.masked_fill(hidden, garbage), mask)
    assert torch.equal(dirty, module(q, k, v, mask))


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize(
    "mask", [Full(), Causal(), Dense(EMPTY)], ids=["full", "causal", "empty rows"]
)
def test_gradients(core: CoreConfig, mask: Full | Causal | Dense) -> None:
    tensors = [
        torch.randn(BATCH, heads, 6, 2, dtype=torch.float64, requires_grad=True)
        for heads in (2, 1, 1)
    ]
    bias = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    module = built(core)
    tight = {"atol": 1e-6, "rtol": 1e-4}
    assert torch.autograd.gradcheck(
        lambda *x: module(*x[:3], mask, tiles(x[3])), (*tensors, bias), **tight
    )
    assert torch.autograd.gradcheck(lambda *x: module(*x, mask), tensors, **tight)
    if isinstance(core, EagerCoreConfig):  # fused kernels have no second derivative
        assert torch.autograd.gradgradcheck(
            lambda *x: module(*x[:3], mask, tiles(x[3])), (*tensors, bias), fast_mode=True, **tight
        )


def test_eager_weights_are_shares() -> None:
    q, k = torch.randn(BATCH, HEADS, 6, WIDTH), torch.randn(BATCH, 2, 6, WIDTH)
    weights = EagerCore().weights(q, k, Dense(EMPTY))
    assert weights.shape == (BATCH, HEADS, 6, 6)
    assert weights.min() >= 0
    assert_close(weights.sum(-1), EMPTY.any(-1).float().expand(BATCH, HEADS, 6))


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
def test_dropout_of_weights_in_training_alone(core: CoreConfig) -> None:
    module = built(core, 0.5)
    q = torch.randn(1, 1, 64, 8)
    assert not torch.allclose(module(q, q, q, Full()), module(q, q, q, Full()))
    assert_close(module.eval()(q, q, q, Full()), built(core)(q, q, q, Full()))


@pytest.mark.parametrize("core", named(SOFTMAX_CORES))
@pytest.mark.parametrize("mask", [Full(), Causal()])
def test_scores_far_apart_stay_finite(core: CoreConfig, mask: Full | Causal) -> None:
    q = (1e3 * torch.randn(1, 2, 5, 8)).requires_grad_()
    out = built(core)(q, q, q, mask)
    out.sum().backward()
    assert out.isfinite().all()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]
)
@pytest.mark.parametrize("name", ["full", "causal", "padding", "empty rows"])
def test_cuda_kernels_equal_the_formula(backend: str, name: str) -> None:
    inputs, mask, wanted = problem(name, 4, biased=False)
    mask = Dense(mask.allowed.cuda()) if isinstance(mask, Dense) else mask
    module = built(SOFTMAX_CORES[0])
    try:
        with sdpa_kernel(SDPBackend.__members__[backend]):
            got = run(
                lambda q, k, v: module(q, k, v, mask), [x.cuda() for x in inputs], torch.bfloat16
            )
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        pytest.skip(f"{backend} does not take this mask")
    for a, b in zip(got, wanted, strict=True):
        assert (a.cpu().double() - b).norm() <= 2e-2 * b.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "padding", "empty rows"])
def test_a_gpu_compiles_masks(name: str) -> None:
    inputs, mask, wanted = problem(name, 4, biased=False)
    mask = Dense(mask.allowed.cuda()) if isinstance(mask, Dense) else mask
    core = built(SOFTMAX_CORES[0])
    compiled = torch.compile(lambda q, k, v: core(q, k, v, mask), fullgraph=True)
    got = run(compiled, [x.cuda() for x in inputs], torch.bfloat16)
    for a, b in zip(got, wanted, strict=True):
        assert (a.cpu().double() - b).norm() <= 2e-2 * b.norm()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("many", [10**6, 0], ids=["few scores", "many"])
def test_autocast_takes_plain_products_of_short_texts(
    name: str, kv_heads: int, biased: bool, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, mask, wanted = problem(name, kv_heads, biased)
    module = built(SOFTMAX_CORES[0])
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)
    few = use_choices(KernelChoices(many_scores=many))
    with few, torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(
            lambda q, k, v, bias=None: module(q, k, v, mask, tiles(bias)), inputs, torch.bfloat16
        )
    for a, b in zip(got, wanted, strict=True):
        assert (a.double() - b).norm() <= 2e-2 * b.norm()


class Recorder(EagerCore):
    """A core from outside that keeps the shapes it is called with."""

    seen: ClassVar[list[tuple[torch.Size, ...]]] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        self.seen.append((q.shape, k.shape, v.shape))
        return super().forward(q, k, v, *rest)


@dataclass(frozen=True)
class RecorderConfig:
    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> nn.Module:
        return Recorder(score, dropout=dropout)


def test_a_core_from_outside_is_tried_with_the_heads_of_its_layer() -> None:
    multihead.build_core(RecorderConfig(), HeadShape(6, 2, 4), DotProduct(0.5), 0.0, 0)
    assert Recorder.seen[-1] == ((2, 6, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4))
