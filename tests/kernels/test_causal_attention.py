"""Causal attention by the operator, and its gradient, are those of the definition in float64."""

import math
from pathlib import Path

import pytest
import torch
from tests.kernels.arm import needs_tools, on_arm, on_each_level
from tests.kernels.attending import gradients, in_float64, other_layouts
from tests.kernels.attending import inputs_of as inputs_of_lengths
from torch import Tensor

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.kernels.causal_attention import OPERATOR, causal_attention

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

SIZES = [
    (0, 2, 4, 8),
    (2, 0, 4, 8),
    (2, 3, 0, 4),
    (2, 3, 5, 0),
    (1, 1, 1, 1),
    (1, 2, 2, 2),
    (2, 3, 3, 3),
    (2, 3, 17, 19),
    (1, 2, 64, 32),
    (2, 1, 130, 64),
    (1, 2, 512, 128),
]
"""`(batch, heads, seq, d_head)`: multiples of vectors, and others."""


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_attention(q, k, v, scale=0.3)


def inputs_of(batch: int, heads: int, seq: int, d_head: int) -> list[Tensor]:
    return inputs_of_lengths(batch, heads, seq, seq, d_head, dtype=torch.float32)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_gradient_is_that_of_the_definition(sizes: tuple[int, int, int, int]) -> None:
    inputs = inputs_of(*sizes)
    got = gradients(attend, *inputs)
    for ours, wide in zip(got, in_float64(inputs, causal=True, scale=0.3), strict=True):
        assert ours.dtype is torch.float32
        largest = float(wide.abs().max()) if wide.numel() else 0.0
        torch.testing.assert_close(ours.double(), wide, rtol=0, atol=1e-5 * max(largest, 1e-3))


def test_layouts_do_not_matter() -> None:
    inputs = inputs_of(2, 2, 21, 9)
    expected = gradients(attend, *inputs)
    for others in other_layouts(inputs):
        for got, want in zip(gradients(attend, *others), expected, strict=True):
            assert torch.equal(got, want)


def test_a_head_depends_on_no_other_on_no_later_token_and_on_no_threads() -> None:
    inputs = inputs_of(2, 2, 100, 16)
    together = gradients(attend, *inputs)
    alone = gradients(attend, *(x[1:, :1] for x in inputs))
    assert all(torch.equal(a, b[1:, :1]) for a, b in zip(alone, together, strict=True))
    early = gradients(attend, *(x[:, :, :40] for x in inputs))
    assert torch.equal(early[0], together[0][:, :, :40])
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    other = gradients(attend, *inputs)
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(other, together, strict=True))


@pytest.mark.parametrize("scale", [1e-30, 100.0, 1e5])
def test_scores_far_apart_and_all_equal(scale: float) -> None:
    """Most weights are one or zero, and none overflows; or all are the same."""
    inputs = inputs_of(1, 1, 50, 8)
    inputs[0] = inputs[0].round()
    inputs[1] = inputs[1].round()  # so that scores are exact
    got = gradients(lambda q, k, v: causal_attention(q, k, v, scale=scale), *inputs)
    for ours, wide in zip(got, in_float64(inputs, causal=True, scale=scale), strict=True):
        torch.testing.assert_close(ours.double(), wide, rtol=1e-3, atol=1e-5 * max(1, scale))


def test_nan_reaches_every_query_that_sees_it() -> None:
    q, k, v, _ = inputs_of(1, 1, 40, 8)
    k[0, 0, 20, 3] = math.nan
    assert attend(q, k, v)[0, 0, 20:].isnan().all()
    assert attend(q, k, v)[0, 0, :16].isfinite().all()


@pytest.mark.parametrize("wrong", ["dtype", "heads", "width", "keys"])
def test_tensors_that_do_not_fit_are_refused(wrong: str) -> None:
    q, k, v, _ = inputs_of(1, 2, 5, 4)
    q = {"dtype": q.double(), "heads": q[:, :1], "width": q[..., :3]}.get(wrong, q)
    v = {"keys": v[:, :, :4]}.get(wrong, v)
    with pytest.raises(RuntimeError, match="do not fit together"):
        causal_attention(q, k, v, scale=1.0)
    rows = torch.zeros(1, 5, 2, 4)
    with pytest.raises(RuntimeError, match="do not fit together"):
        torch.ops.addnorm.causal_attention_backward(rows[:, :4], rows, rows, rows, 1.0)


@pytest.mark.slow
@needs_tools
@on_each_level
def test_it_is_the_definition_on_arm(level: str, tmp_path: Path) -> None:
    forward = on_arm(OPERATOR, level, tmp_path)
    each_size = [[x.transpose(1, 2) for x in inputs_of(*sizes)] for sizes in SIZES]
    outputs = [forward(q, k, v, 0.3) for q, k, v, _ in each_size]
    backward = on_arm(OPERATOR, level, tmp_path, operator=f"{OPERATOR}_backward")
    for (q, k, v, dy), output in zip(each_size, outputs, strict=True):
        inputs = [x.transpose(1, 2) for x in (q, k, v, dy)]
        wide = in_float64(inputs, causal=True, scale=0.3)
        for ours, want in zip([*output, *backward(dy, q, k, v, 0.3)], wide, strict=True):
            largest = float(want.abs().max()) if want.numel() else 0.0
            torch.testing.assert_close(
                ours.transpose(1, 2).double(), want, rtol=0, atol=1e-5 * max(largest, 1e-3)
            )
