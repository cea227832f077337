"""Cross-entropy by the operator, and its gradient, are those of the definition in float64."""

import math
from pathlib import Path

import pytest
import torch
from tests.kernels.arm import needs_tools, on_arm, on_each_level
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.kernels.cross_entropy import DTYPES, OPERATOR, cross_entropy

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

IGNORED = -100

SHAPES = [(0, 3), (1, 1), (2, 2), (3, 3), (5, 16), (4, 65), (7, 10_001)]
"""Numbers of rows and of logits."""


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)


def in_float64(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    wide = logits.double().requires_grad_()
    losses = F.cross_entropy(
        wide, targets, reduction="none", label_smoothing=smoothing, ignore_index=IGNORED
    )
    return losses.detach(), torch.autograd.grad(losses.sum(), wide)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loss_and_gradient_are_those_of_the_definition(
    shape: tuple[int, int], smoothing: float, dtype: torch.dtype
) -> None:
    logits = (3 * torch.randn(shape)).to(dtype)
    targets = torch.randint(shape[1], shape[:1])
    targets[2:3] = IGNORED
    losses, grad = cross_entropy(logits, targets, smoothing, ignored=IGNORED)
    assert_defined(losses, grad, logits, targets, smoothing)


def assert_defined(
    losses: Tensor, grad: Tensor, logits: Tensor, targets: Tensor, smoothing: float
) -> None:
    expected, expected_grad = in_float64(logits, targets, smoothing)
    assert losses.dtype is torch.float32
    assert grad.dtype is logits.dtype
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=1e-5)
    rtol, atol = (0.0, 1e-6) if logits.dtype is torch.float32 else (2**-8, 1e-9)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("size", [1e4, 3e38])
def test_logits_far_apart(size: float) -> None:
    """Most probabilities are zero, and nothing overflows."""
    logits = torch.tensor([[0.0, size, -size], [size, size, 0.0], [-size, -size, -size]])
    targets = torch.tensor([1, 0, 2])
    losses, grad = cross_entropy(logits, targets, 0.0, ignored=IGNORED)
    expected, expected_grad = in_float64(logits, targets, 0.0)
    torch.testing.assert_close(losses.double(), expected)
    torch.testing.assert_close(grad.double(), expected_grad)


def test_a_masked_logit_gets_no_probability() -> None:
    logits = torch.randn(3, 20)
    logits[:, 5] = -math.inf
    losses, grad = cross_entropy(logits, torch.arange(3), 0.0, ignored=IGNORED)
    expected, _ = in_float64(logits, torch.arange(3), 0.0)
    torch.testing.assert_close(losses.double(), expected)
    assert not grad[:, 5].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_makes_its_own_row_nan(bad: float) -> None:
    logits = torch.randn(3, 40)
    logits[1, 17] = bad
    losses, _ = cross_entropy(logits, torch.zeros(3).long(), 0.1, ignored=IGNORED)
    assert losses.isnan().tolist() == [False, True, False]


def test_a_row_depends_neither_on_others_nor_on_threads() -> None:
    logits, targets = torch.randn(9, 100), torch.arange(9)
    losses, grad = cross_entropy(logits, targets, 0.1, ignored=IGNORED)
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    for i in range(9):
        one, its = cross_entropy(logits[i : i + 1], targets[i : i + 1], 0.1, ignored=IGNORED)
        assert torch.equal(one[0], losses[i])
        assert torch.equal(its[0], grad[i])
    torch.set_num_threads(before)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_target_beyond_the_classes_is_refused(wrong: int) -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([1, wrong]), 0.0, ignored=IGNORED)


def test_tensors_that_do_not_fit_are_refused() -> None:
    for logits, targets in (
        (torch.zeros(2, 5).double(), torch.zeros(2).long()),
        (torch.zeros(2, 5), torch.zeros(2).int()),
        (torch.zeros(2, 5), torch.zeros(3).long()),
    ):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.cross_entropy(logits, targets, 0.0, IGNORED)


@pytest.mark.slow
@needs_tools
@on_each_level
def test_it_is_the_definition_on_arm(level: str, tmp_path: Path) -> None:
    run = on_arm(OPERATOR, level, tmp_path)
    for dtype in DTYPES:
        for shape in SHAPES:
            logits, targets = (3 * torch.randn(shape)).to(dtype), torch.randint(shape[1], shape[:1])
            targets[2:3] = IGNORED
            assert_defined(*run(logits, targets, 0.1, IGNORED), logits, targets, 0.1)
