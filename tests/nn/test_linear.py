"""The linear layer equals `F.linear` in values and gradients, for every kernel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from addnorm.nn import linear as module
from addnorm.nn.linear import Linear, linear


def gradients(f, *inputs: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = f(*leaves)
    return [y, *torch.autograd.grad((y * y.detach().sin()).sum(), leaves)]


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    d_in=st.integers(1, 40),
    d_out=st.integers(1, 40),
    bias=st.booleans(),
)
def test_value_and_gradients_are_those_of_the_definition(shape, d_in, d_out, bias) -> None:
    inputs = [torch.randn(*shape, d_in), torch.randn(d_out, d_in)]
    inputs += [torch.randn(d_out)] * bias
    wide = gradients(F.linear, *(x.double() for x in inputs))
    for got, want in zip(gradients(linear, *inputs), wide, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_a_part_of_a_matrix_is_no_matrix_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would compute by hand, a thousand times slower: GPT-2's queries are such a part."""
    seen = []
    kernel = module._pointwise
    monkeypatch.setattr(
        module, "_pointwise", lambda a, b, *c: (seen.append((a, b)), kernel(a, b, *c))[1]
    )
    whole, x = torch.randn(6, 12, requires_grad=True), torch.randn(5, 9, requires_grad=True)
    for weight in (whole[:, :9], whole.t()[:9, :4].t(), whole[:, ::2]):
        y = linear(x[:, : weight.shape[1]], weight)
        torch.testing.assert_close(
            y, F.linear(x[:, : weight.shape[1]], weight), rtol=1e-5, atol=1e-5
        )
        y.sum().backward()
    linear(x, torch.randn(4, 9, requires_grad=True))[:, 1:3].sum().backward()
    assert seen
    assert all(module._is_dense(t) for pair in seen for t in pair)


def test_it_takes_what_is_strided_and_empty() -> None:
    x, w = torch.randn(6, 4, 3).transpose(0, 2), torch.randn(6, 5).t()
    torch.testing.assert_close(linear(x, w), F.linear(x, w), rtol=1e-5, atol=1e-5)
    assert linear(torch.randn(0, 6), w).shape == (0, 5)
    assert linear(torch.randn(2, 0, 6), w).shape == (2, 0, 5)


def test_float32_products_of_several_rows_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare `F.linear` with itself."""
    calls = []
    kernel = module._pointwise
    monkeypatch.setattr(module, "_pointwise", lambda *a: (calls.append(a), kernel(*a))[1])
    layer = Linear(4, 3)
    layer(torch.randn(2, 4)).sum().backward()
    assert len(calls) == 2  # forward, and the gradient of the weight: x has none
    layer(torch.randn(1, 4))
    layer.double()(torch.randn(2, 4).double())
    layer.bfloat16()(torch.randn(2, 4).bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer.float()(torch.randn(2, 4))
    assert len(calls) == 2


def test_gradients_have_gradients() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)

    def penalty(f) -> Tensor:
        (g,) = torch.autograd.grad(f(x, w).square().sum(), x, create_graph=True)
        return g.square().sum()

    ours, theirs = (torch.autograd.grad(penalty(f), [x, w]) for f in (linear, F.linear))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_wrong_widths_are_refused() -> None:
    with pytest.raises((RuntimeError, TypeError)):
        linear(torch.randn(2, 3), torch.randn(4, 5))
