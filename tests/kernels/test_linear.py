"""The linear layer by the operator, and its gradients, are those of the definition in float64."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.kernels.arm import needs_tools, on_arm, on_each_level
from torch import Tensor

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.kernels.linear import OPERATOR, linear

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

F32, BF16 = torch.float32, torch.bfloat16


class Kind(NamedTuple):
    """The type of `x`, and whether the product is in bfloat16."""

    x: torch.dtype
    narrow: bool


KINDS = [Kind(F32, False), Kind(F32, True), Kind(BF16, True)]

SIZES = [
    *((n, k, (m,)) for n in (0, 1, 2, 3) for k in (1, 2, 3) for m in (0, 1, 2, 3)),
    *((n, 17, (n + 1,)) for n in (5, 6, 7, 13, 14, 15, 27, 28, 29, 31, 32, 33, 64, 65)),
    *((n, 2, (100 - n,)) for n in (1, 33, 64, 99)),
    *((15, k, (33,)) for k in (31, 32, 33, 511, 512, 513, 1023, 1024, 1025, 2049)),
    *((k, 15, (33,)) for k in (255, 256, 257, 511, 512, 513, 1025)),
    (14, 33, (511,)),
    (14, 33, (1025,)),
    (3, 19, (1, 2, 3)),
    (40, 65, (64, 16, 16)),
    (40, 65, (33, 1, 0, 31)),
    (70, 513, (300, 7)),
    (2, 257, (600,)),
]
"""Rows, input features, output features of each weight: edges of tiles and of passes."""


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)


class Inputs(NamedTuple):
    """What a layer reads, and the gradient of its output."""

    x: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    dy: Tensor


def inputs_of(n: int, k: int, heights: Sequence[int], kind: Kind) -> Inputs:
    of_y = BF16 if kind.narrow else F32
    return Inputs(
        in_nan(torch.randn(n, k).to(kind.x)),
        [in_nan(torch.randn(m, k)) for m in heights],
        [in_nan(torch.randn(m)) for m in heights],
        in_nan(torch.randn(n, sum(heights)).to(of_y)),
    )


def in_nan(values: Tensor) -> Tensor:
    """The same numbers in the middle of memory that no result may contain."""
    around = torch.full((values.numel() + 256,), math.nan, dtype=values.dtype)
    return around[128 : 128 + values.numel()].view(values.shape).copy_(values)


def gradients(inputs: Inputs, *, narrow: bool, bias: bool = True) -> list[Tensor]:
    """The output, and the gradients of `x`, of each weight and of each bias."""
    x, *others = (t.detach().requires_grad_() for t in (inputs.x, *inputs.weights, *inputs.biases))
    n = len(inputs.weights)
    leaves = [x, *others[: 2 * n if bias else n]]
    y = linear(x, others[:n], others[n:] if bias else [], narrow=narrow)
    return [y.detach(), *torch.autograd.grad(y, leaves, inputs.dy)]


def factor(x: Tensor, *, narrow: bool) -> Tensor:
    """As it is multiplied."""
    return (x.to(BF16) if narrow else x).double()


def assert_defined(found: Sequence[Tensor], inputs: Inputs, kind: Kind, *, bias: bool) -> None:
    """Within what sums in float32 lose, and the rounding of results that are bfloat16."""
    x, dy = (factor(t, narrow=kind.narrow) for t in (inputs.x, inputs.dy))
    weight = factor(torch.cat(inputs.weights), narrow=kind.narrow)
    of_bias = torch.cat(inputs.biases).double() if bias else weight.new_zeros(len(weight))
    heights = [len(each) for each in inputs.weights]
    y, dx, *others = found
    assert (y.dtype, dx.dtype) == (inputs.dy.dtype, inputs.x.dtype)
    assert_near(y, x @ weight.T + of_bias, x.abs() @ weight.abs().T + of_bias.abs())
    assert_near(dx, dy @ weight, dy.abs() @ weight.abs())
    wide = [*(dy.T @ x).split(heights), *dy.sum(0).split(heights)]
    sizes = [*(dy.T.abs() @ x.abs()).split(heights), *dy.abs().sum(0).split(heights)]
    for ours, expected, size in zip(others, wide, sizes, strict=bias):
        assert ours.dtype is F32
        assert_near(ours, expected, size)


def assert_near(found: Tensor, expected: Tensor, size: Tensor) -> None:
    assert found.shape == expected.shape
    assert found.is_contiguous()
    rounding = expected.abs() * 2**-8 if found.dtype is BF16 else 0.0
    assert ((found.double() - expected).abs() <= 1e-6 * size + rounding + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients_are_those_of_the_definition(
    sizes: tuple[int, int, tuple[int, ...]], bias: bool, kind: Kind
) -> None:
    inputs = inputs_of(*sizes, kind)
    assert_defined(gradients(inputs, narrow=kind.narrow, bias=bias), inputs, kind, bias=bias)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_gradient_alone_is_that_of_all(kind: Kind) -> None:
    inputs = inputs_of(45, 70, (34, 1), kind)
    _, dx, *others = gradients(inputs, narrow=kind.narrow)
    parts = [inputs.x], inputs.weights, inputs.biases
    for wanted, expected in ((0, [dx]), (1, others[:2]), (2, others[2:])):
        leaves = [[t.detach().requires_grad_(i == wanted) for t in p] for i, p in enumerate(parts)]
        y = linear(leaves[0][0], *leaves[1:], narrow=kind.narrow)
        found = torch.autograd.grad(y, leaves[wanted], inputs.dy)
        assert all(map(torch.equal, found, expected))


def test_an_input_that_no_gradient_needs_may_change() -> None:
    """As with `F.linear`, where biases alone are trained."""
    inputs = inputs_of(45, 70, (34,), KINDS[0])
    bias = inputs.biases[0].requires_grad_()
    y = linear(inputs.x, inputs.weights, [bias], narrow=False)
    inputs.x.mul_(2)
    inputs.weights[0].mul_(2)
    y.backward(inputs.dy)
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, inputs.dy.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_saved_tensors_come_back_in_any_layout(kind: Kind) -> None:
    inputs = inputs_of(33, 40, (17, 20), kind)
    expected = gradients(inputs, narrow=kind.narrow)
    turned = torch.autograd.graph.saved_tensors_hooks(lambda t: t.t().contiguous(), Tensor.t)
    with turned:
        found = gradients(inputs, narrow=kind.narrow)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_layout_of_the_gradient_does_not_matter(kind: Kind) -> None:
    inputs = inputs_of(33, 40, (17, 20), kind)
    expected = gradients(inputs, narrow=kind.narrow)
    around = torch.full((33, 74), math.nan, dtype=inputs.dy.dtype)
    for dy in (around[:, ::2].copy_(inputs.dy), inputs.dy.t().contiguous().t()):
        assert not dy.is_contiguous()
        found = gradients(inputs._replace(dy=dy), narrow=kind.narrow)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stays_in_its_row_or_column(bad: float, kind: Kind) -> None:
    for n, k, m in ((45, 70, 35), (35, 1200, 45)):
        inputs = inputs_of(n, k, (m, 3), kind)
        before = gradients(inputs, narrow=kind.narrow)
        for changed, place in ((inputs.x, (3, 5)), (inputs.weights[0], (30, 5))):
            old = changed[place].clone()
            changed[place] = bad
            y, dx, *of_weights = gradients(inputs, narrow=kind.narrow)
            changed[place] = old
            if changed is inputs.x:
                touched = [(y, (3,)), *((t, (slice(None), 5)) for t in of_weights[:2])]
            else:
                touched = [(y, (slice(None), 30)), (dx, (slice(None), 5))]
            for t, where in touched:
                assert not t[where].isfinite().any()
            for t, where in touched:
                t[where] = 0
            for found, expected in zip((y, dx, *of_weights), before, strict=True):
                same = (found == expected) | (found == 0)
                assert same.all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_depends_on_no_threads_and_a_row_on_no_other(kind: Kind) -> None:
    for n, k, m in ((70, 600, 45), (45, 600, 170)):
        inputs = inputs_of(n, k, (m, 30), kind)
        together = gradients(inputs, narrow=kind.narrow)
        before = torch.get_num_threads()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = gradients(inputs, narrow=kind.narrow)
            torch.set_num_threads(before)
            assert all(map(torch.equal, found, together))
        for rows in (slice(0, 1), slice(3, 20), slice(13, 44)):
            part = inputs._replace(x=inputs.x[rows], dy=inputs.dy[rows])
            alone = gradients(part, narrow=kind.narrow)
            assert torch.equal(alone[0], together[0][rows])
            assert torch.equal(alone[1], together[1][rows])
        apart = [
            linear(inputs.x, [w], [b], narrow=kind.narrow)
            for w, b in zip(inputs.weights, inputs.biases, strict=True)
        ]
        assert torch.equal(torch.cat(apart, dim=1), together[0])


def test_a_result_in_bfloat16_is_rounded_once() -> None:
    """To the nearest: whole numbers, whose sums in float32 are exact."""
    x, weight = (torch.randint(-8, 9, size).float() for size in ((40, 3000), (50, 3000)))
    y = linear(x, [weight], [], narrow=True)
    assert torch.equal(y, (x.double() @ weight.double().T).to(BF16))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_second_derivative_is_that_of_the_definition(kind: Kind) -> None:
    inputs = inputs_of(5, 4, (3, 2), kind)
    tensors = [inputs.x, *inputs.weights, *inputs.biases]

    def penalty(of: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        x, weights, biases = leaves[0], leaves[1:3], leaves[3:]
        grads = torch.autograd.grad(
            of(x, weights, biases).float().square().sum(), leaves, create_graph=True
        )
        loss = torch.stack([grad.float().square().sum() for grad in grads]).sum()
        return list(torch.autograd.grad(loss, leaves))

    def definition(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
        y = x.float() @ torch.cat(weights).T
        return y + torch.cat(biases) if biases else y

    got, expected = penalty(partial(linear, narrow=kind.narrow)), penalty(definition)
    for ours, theirs in zip(got, expected, strict=True):
        tolerance = 0.05 if kind.narrow else 1e-5
        assert (ours.float() - theirs.float()).norm() <= tolerance * theirs.float().norm()


def test_tensors_that_do_not_fit_are_refused() -> None:
    x, w, b = torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3)
    for of_x, weights, biases, narrow in (
        (x[:, :3], [w], [b], False),
        (x, [w, w[:, :3]], None, False),
        (x, [w], [b[:2]], False),
        (x, [w, w], [b], False),
        (x, [w], [b.double()], False),
        (x, [w.double()], [b], False),
        (x.double(), [w], [b], False),
        (x.bfloat16(), [w], [b], False),
        (x.half(), [w], [b], True),
        (x, [w.half()], [b], True),
        (x[0], [w], [b], False),
        (x[:, :0], [w[:, :0].clone()], [b], False),
        (torch.zeros(4, 2).t(), [w], [b], False),
        (x, [torch.zeros(4, 3).t()], [b], False),
        (x, [w], [torch.zeros(6)[::2]], False),
    ):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.linear(of_x, weights, biases, narrow)
    for dy in (torch.zeros(2, 4), torch.zeros(1, 3), torch.zeros(2, 3).double(), torch.zeros(3)):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.linear_backward(dy, x, [w], True, True)


@pytest.mark.slow
@needs_tools
@on_each_level
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_the_definition_on_arm(level: str, kind: Kind, tmp_path: Path) -> None:
    forward = on_arm(OPERATOR, level, tmp_path)
    each = [inputs_of(*sizes, kind) for sizes in SIZES if len(sizes[2]) == 1]
    outputs = [forward(i.x, *i.weights, *i.biases, float(kind.narrow)) for i in each]
    backward = on_arm(OPERATOR, level, tmp_path, operator=f"{OPERATOR}_backward")
    for inputs, y in zip(each, outputs, strict=True):
        found = backward(inputs.dy, inputs.x, *inputs.weights)
        assert_defined([*y, *found], inputs, kind, bias=True)
