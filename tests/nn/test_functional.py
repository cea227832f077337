"""Reference functions against hand-computed numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.nn import functional

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_at_least_float32_widens_narrow_types_alone(dtype: torch.dtype) -> None:
    y = functional.at_least_float32(X.to(dtype))
    assert y.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(y.double(), X.double())


def test_scores_are_products_over_the_root_of_the_width() -> None:
    q, k = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 5.0, 6.0]])
    assert_close(functional.scaled_dot_scores(q, k) * math.sqrt(3), torch.tensor([[32.0]]))
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    expected = torch.tensor([[19.0, 22.0], [43.0, 50.0]])
    assert_close(functional.scaled_dot_scores(a, b.T) * math.sqrt(2), expected)


@pytest.mark.parametrize("width", [4, 64, 256])
def test_scores_of_unit_normals_have_unit_variance(width: int) -> None:
    q, k = torch.randn(400, width), torch.randn(400, width)
    scores = functional.scaled_dot_scores(q, k)
    assert scores.var().item() == pytest.approx(1.0, rel=0.1)
    assert (q @ k.T).var().item() == pytest.approx(width, rel=0.1)


def test_softmax_by_hand() -> None:
    scores = torch.tensor([[0.0, math.log(3.0), 100.0]])
    weights = functional.masked_softmax(scores, torch.tensor([[True, True, False]]))
    assert_close(weights, torch.tensor([[0.25, 0.75, 0.0]]))


def test_softmax_without_a_mask_is_softmax() -> None:
    scores = torch.randn(2, 3, 5)
    assert_close(functional.masked_softmax(scores), scores.softmax(-1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e4])
def test_softmax_never_reads_masked_scores(dtype: torch.dtype, garbage: float) -> None:
    scores = torch.randn(3, 4).to(dtype)
    allowed = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
    dirty = scores.masked_fill(~allowed, garbage).requires_grad_()
    weights = functional.masked_softmax(dirty, allowed)
    assert weights.dtype == dtype
    assert torch.equal(weights, functional.masked_softmax(scores, allowed))
    assert torch.equal(weights[1], torch.zeros(4, dtype=dtype))
    (weights * torch.arange(4.0).to(dtype)).sum().backward()
    assert dirty.grad is not None
    assert torch.equal(dirty.grad[~allowed], torch.zeros(5, dtype=dtype))
    assert dirty.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("allowed", [None, torch.ones(4, 64, dtype=torch.bool)])
def test_narrow_scores_are_weighed_in_float32(
    dtype: torch.dtype, allowed: torch.Tensor | None
) -> None:
    """A constant gradient has no effect on softmax; that of rounded weights is far from none."""
    scores = torch.randn(4, 64).to(dtype).requires_grad_()
    weights = functional.masked_softmax(scores, allowed)
    weights.backward(torch.full_like(weights, 1000.0))
    assert scores.grad is not None
    assert scores.grad.abs().max() < 1e-3


def test_softmax_of_huge_scores_is_finite() -> None:
    scores = torch.tensor([[3e38, -3e38, 3e38]])
    allowed = torch.tensor([[True, True, False]])
    assert_close(functional.masked_softmax(scores, allowed), torch.tensor([[1.0, 0.0, 0.0]]))


def test_norms_by_hand() -> None:
    row = torch.tensor([-1.224745, 0.0, 1.224745])
    assert_close(functional.layer_norm(X, eps=0.0), torch.stack((row, row)), rtol=0, atol=1e-6)
    gain, shift = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.5, 0.5])
    assert_close(functional.layer_norm(X, gain, shift, eps=0.0)[0], row * gain + shift)
    root = math.sqrt((1 + 4 + 9) / 3)
    assert_close(functional.rms_norm(X[:1], eps=0.0), X[:1] / root)
    assert_close(functional.rms_norm(X[:1], gain, eps=0.0), X[:1] / root * gain)


def test_batch_norm_by_hand() -> None:
    mean, variance = functional.moments(X)
    assert_close(mean, torch.tensor([2.5, 3.5, 4.5]))
    assert_close(variance, torch.full((3,), 2.25))
    ones = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    assert_close(functional.batch_norm(X, mean, variance, eps=0.0), ones)
    gain, shift = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.5, 0.5])
    assert_close(functional.batch_norm(X, mean, variance, gain, shift, eps=0.0)[1], gain + shift)


def test_moments_never_read_padding() -> None:
    x = torch.stack((X, torch.full_like(X, math.nan)))
    valid = torch.tensor([[True, True], [False, False]])
    assert_close(functional.moments(x, valid), functional.moments(X))
    nothing = functional.moments(x, torch.zeros_like(valid))
    assert_close(nothing, (torch.zeros(3), torch.zeros(3)))


def test_scale_norm_by_hand() -> None:
    x, gain = torch.tensor([[3.0, 4.0], [0.0, 0.3]]), torch.tensor(10.0)
    assert_close(functional.scale_norm(x, gain), torch.tensor([[6.0, 8.0], [0.0, 10.0]]))
    assert_close(functional.scale_norm(x, gain, eps=1.0)[1], torch.tensor([0.0, 3.0]))


def test_epsilon_stands_inside_the_root() -> None:
    x = torch.tensor([[1.0, -1.0]])
    assert_close(functional.layer_norm(x, eps=3.0), x / 2)
    assert_close(functional.rms_norm(x, eps=3.0), x / 2)
    assert_close(functional.batch_norm(x, torch.zeros(2), torch.ones(2), eps=3.0), x / 2)


def test_squared_relu() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0])
    assert_close(functional.squared_relu(x), torch.tensor([0.0, 0.0, 9.0]))


def test_the_form_of_gelu_for_compilers_is_the_same_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e12, -1e4, 1e4, 1e12])])
    exact = x.double().requires_grad_()
    expected = torch.nn.functional.gelu(exact, approximate="tanh")
    expected.sum().backward()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x.requires_grad_()
    found = functional.gelu_tanh(x)
    found.sum().backward()
    assert found.grad_fn is not None
    assert "Gelu" not in found.grad_fn.name(), "the other form"
    assert x.grad is not None
    assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    assert exact.grad is not None
    assert_close(x.grad, exact.grad.float(), rtol=1e-5, atol=1e-5)


def test_quick_gelu_is_near_gelu() -> None:
    """Within 0.021, as far as the logistic curve is from the normal one (Hendrycks & Gimpel)."""
    x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    apart = (functional.quick_gelu(x) - torch.nn.functional.gelu(x)).abs().max()
    assert 0.02 < apart < 0.021


def test_the_epsilons_that_nobody_names_are_those_of_torch_and_the_papers() -> None:
    """On numbers so small that ε decides."""
    small, zero, one = X / 1000, torch.zeros(3), torch.ones(3)
    assert_close(functional.layer_norm(small), F.layer_norm(small, (3,)))
    assert_close(functional.rms_norm(small), F.rms_norm(small, (3,), eps=1e-6))
    assert_close(functional.batch_norm(small, zero, zero), small / math.sqrt(1e-5))
    tiny = torch.tensor([3e-6, 4e-6])
    assert_close(functional.scale_norm(tiny, torch.tensor(1.0)), tiny / 1e-5)
    assert_close(functional.batch_norm(small, zero, one), small / math.sqrt(1 + 1e-5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_scores_are_weighed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    scores = (3 * torch.randn(4, 300)).to(dtype)
    allowed = torch.rand(4, 300) < 0.7
    weights = functional.masked_softmax(scores, allowed)
    expected = scores.float().masked_fill(~allowed, -math.inf).softmax(-1).to(dtype)
    assert weights.dtype == dtype
    assert torch.equal(weights, expected)


NORMS = {
    "layer": functional.layer_norm,
    "rms": functional.rms_norm,
    "batch": lambda x: functional.batch_norm(x, x[0], x[1].abs()),
    "scale": lambda x: functional.scale_norm(x, torch.ones((), dtype=x.dtype)),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms_are_computed_in_float32_at_least(norm: Callable[[Tensor], Tensor]) -> None:
    """Float64 stays; a narrow type is rounded once, at the end."""
    x = 40 * torch.randn(6, 33, dtype=torch.float64)
    assert norm(x).dtype == torch.float64
    difference = (norm(x) - norm(x.float()).double()).abs().max()
    assert 1e-12 < difference < 1e-4
    for dtype in (torch.bfloat16, torch.float16):
        narrow = x.to(dtype)
        assert torch.equal(norm(narrow), norm(narrow.float()).to(dtype))
