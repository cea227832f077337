"""Attention and its gradient by the operators are those of the definition in float64."""

import os
import subprocess
import sys

import pytest
import torch
from tests.kernels.attending import gradients, in_float64, inputs_of, other_layouts
from torch import Tensor

from addnorm.compiler import has_compiler
from addnorm.kernels.attention import FORWARD, OPERATOR, attention
from addnorm.kernels.build import load_operator

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

SIZES = [
    (1, 1, 2, 2, 2),
    (2, 3, 10, 10, 6),
    (1, 2, 64, 64, 32),
    (2, 1, 66, 66, 34),
    (1, 2, 130, 130, 64),
    (2, 2, 18, 70, 16),
    (1, 1, 200, 2, 128),
    (0, 2, 4, 4, 8),
]
"""`(batch, heads, q_seq, kv_seq, d_head)`: multiples of blocks and vectors, and others."""


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)
    load_operator(FORWARD)


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_output_and_gradient_are_those_of_the_definition(
    sizes, causal: bool, by_torch: bool
) -> None:
    inputs, scale = inputs_of(*sizes, dtype=torch.bfloat16), 0.4
    if causal and sizes[2] != sizes[3]:
        pytest.skip("a causal mask has as many keys as queries")

    got = gradients(
        lambda q, k, v: attention(q, k, v, causal=causal, scale=scale, by_torch=by_torch), *inputs
    )
    wide = in_float64(inputs, causal=causal, scale=scale)
    # The mean gradient of a query's weights is computed from an output that is rounded.
    largest = max((float(x.abs().max()) for x in wide if x.numel()), default=0.0)
    for ours, expected in zip(got, wide, strict=True):
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours.double(), expected, rtol=0.01, atol=0.01 * largest)


def test_layouts_do_not_matter() -> None:
    adjacent = inputs_of(2, 2, 20, 20, 8, dtype=torch.bfloat16)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, scale=0.3)

    expected = gradients(attend, *adjacent)
    for inputs in other_layouts(adjacent):
        for got, want in zip(gradients(attend, *inputs), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)


def test_a_head_depends_on_no_other_and_on_no_later_token() -> None:
    inputs = inputs_of(2, 2, 100, 100, 16, dtype=torch.bfloat16)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, scale=0.25)

    together = gradients(attend, *inputs)
    alone = gradients(attend, *(x[1:, :1] for x in inputs))
    assert all(torch.equal(a, b[1:, :1]) for a, b in zip(alone, together, strict=True))
    dy = inputs[3].clone()
    dy[:, :, 40:] = 0
    early = gradients(attend, *inputs[:3], dy)
    assert all(not x[:, :, 40:].any() for x in early[1:])


def test_scores_far_apart() -> None:
    """Most weights are one or zero: no exponential overflows."""
    inputs, scale = inputs_of(1, 1, 64, 64, 8, dtype=torch.bfloat16), 100.0
    got = gradients(lambda *x: attention(*x, causal=False, scale=scale), *inputs)
    wide = in_float64(inputs, causal=False, scale=scale)
    assert all(x.isfinite().all() for x in got)
    torch.testing.assert_close(got[3].double(), wide[3], rtol=0.02, atol=0.02)


@pytest.mark.long
@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2"])
def test_products_are_those_of_the_operator_where_onednn_has_none(limit: str) -> None:
    tests = "output_and_gradient or later_token or far_apart"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", tests],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": limit},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_tensors_that_do_not_fit_are_refused() -> None:
    def heads(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    q = k = v = heads(2, 6, 3, 4)
    sums = torch.zeros(2, 3, 6)
    wrong: list[list[Tensor]] = [
        [q, k, heads(2, 8, 3, 4)],
        [q, heads(2, 4, 3, 4), heads(2, 4, 3, 4)],
        [q[:1], k, v],
        [q, k[:, :, :1], v[:, :, :1]],
        [q, k, heads(2, 6, 3, 6)],
        [heads(2, 6, 3, 3)] * 3,
        [heads(2, 5, 3, 4)] * 3,
        [q, k, v.float()],
        [heads(2, 6, 3, 8)[..., ::2]] * 3,
        [heads(2, 6, 3, 5)[..., :4]] * 3,
    ]
    for inputs in wrong:
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.attention_forward(*inputs, True, 1.0)
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.attention_backward(q, *inputs, q, sums, True, 1.0)
    for dy, y, of_rows in ((q[:1], q, sums), (q, q[:, :2], sums), (q, q, sums[:1])):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.attention_backward(dy, q, k, v, y, of_rows, True, 1.0)
