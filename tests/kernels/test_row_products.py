"""Row products compute the definition in float64, on every path of the processor."""

from pathlib import Path

import pytest
import torch
from tests.kernels.arm import needs_tools, on_arm, on_each_level
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.kernels.row_products import (
    NAMES,
    OPERATORS,
    int4_row_product,
    int8_matmul,
    int8_row_product,
    row_product,
)
from addnorm.nn.linear import multiplies_bfloat16
from addnorm.quantize.int4 import packed, restored, round_nearest, rounded_blocks
from addnorm.quantize.int8 import rounded
from addnorm.tuning.row_products import packed_weight

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [0, 1, 2, 3, 5, 8]
SIZES = [(1, 1), (3, 2), (7, 31), (13, 33), (6, 64), (5, 129), (64, 768), (70, 1000), (4, 4099)]
"""Sizes of matrices, `(d_out, d_in)`."""


LONG = [
    pytest.param(name, marks=pytest.mark.long) if name != "row_product" else name
    for name in sorted({*OPERATORS.values()})
]
"""The operators; compiling one takes seconds, and other tests need that one all the same."""


@pytest.fixture(params=LONG)
def operator(request: pytest.FixtureRequest) -> str:
    load_operator(request.param)
    return request.param


def matrix(operator: str, weight: Tensor) -> tuple[list[Tensor], Tensor]:
    """The arguments for a matrix, and the matrix in float64."""
    if operator == "row_product":
        return [weight], weight.double()
    if operator == "int8_row_product":
        values, scale = rounded(weight)
        return [values, scale], values.double() * scale.double()[:, None]
    groups = round_nearest(weight, 32 if weight.shape[1] % 64 else 64)
    values = packed(groups.values)
    return [values, groups.scale], restored(values, groups.scale, weight.shape[1]).double()


def product(operator: str, *arguments: Tensor | None) -> Tensor:
    functions = {f.__name__: f for f in (row_product, int8_row_product, int4_row_product)}
    return functions[operator](*arguments)


ROUNDING = {"row_product": 2e-6, "int8_row_product": 2e-6, "int4_row_product": 0.5 / 32_639 + 2e-6}
"""The error of a product, in parts of the largest number of `x`: of float32, or 16 bits."""


def assert_close(operator: str, got: Tensor, x: Tensor, wide: Tensor, bias: Tensor | None) -> None:
    """Within the rounding of the largest number, and of the result."""
    shift = 0.0 if bias is None else bias.double()
    expected = x.double() @ wide.t() + shift
    sizes = x.double().abs().amax(1, keepdim=True) * wide.abs().sum(1)
    error = ROUNDING[operator] * sizes + 2e-6 * abs(shift)
    if got.dtype is torch.bfloat16:
        error += 2**-8 * expected.abs()
    assert got.dtype is x.dtype
    assert got.shape == expected.shape
    assert ((got.double() - expected).abs() <= error).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_it_computes_the_definition(
    operator: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    d_out, d_in = size
    weights, wide = matrix(operator, torch.randn(size).to(dtype))
    for rows in ROWS:
        x, bias = torch.randn(rows, d_in).to(dtype), torch.randn(d_out).to(dtype)
        for shift in (bias, None):
            assert_close(operator, product(operator, x, *weights, shift), x, wide, shift)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_that_are_not_contiguous(operator: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights, wide = matrix(operator, torch.randn(6, 70).to(dtype))
    spread = [torch.stack([w, w], -1)[..., 0] for w in weights]
    x = torch.randn(70, 3).to(dtype).t()
    bias = torch.randn(6, 2).to(dtype)[:, 1]
    got = product(operator, x, *spread, bias)
    assert_close(operator, got, x, wide, bias)
    assert torch.equal(got, product(operator, x.contiguous(), *weights, bias.contiguous()))


def test_empty_matrices(operator: str) -> None:
    for size in ((0, 64), (3, 0)):
        weights, _ = matrix("row_product", torch.ones(size))
        if operator == "int8_row_product":
            weights = [weights[0].to(torch.int8), torch.ones(size[0])]
        if operator == "int4_row_product":
            values = torch.zeros(size[0], size[1] // 2, dtype=torch.uint8)
            weights = [values, torch.ones(size[0], size[1] // 64, dtype=torch.bfloat16)]
        y = product(operator, torch.ones(2, size[1]), *weights)
        assert torch.equal(y, torch.zeros(2, size[0]))


def test_a_row_is_the_same_alone_and_with_any_number_of_threads(operator: str) -> None:
    torch.manual_seed(0)
    weights, _ = matrix(operator, torch.randn(37, 300))
    x = torch.randn(7, 300)
    few = 1 if operator != "int4_row_product" else 5  # rows whose sums have another order
    alone = torch.cat([product(operator, x[i : i + few], *weights)[:1] for i in range(8 - few)])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(product(operator, x, *weights)[: len(alone)], alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_come_through(operator: str, number: float) -> None:
    weights, _ = matrix(operator, torch.randn(5, 64))
    x = torch.randn(2, 64)
    x[1, 50] = number
    y = product(operator, x, *weights)
    assert y[0].isfinite().all()
    assert not y[1].isfinite().any()


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e30, 3e38])
def test_tiny_and_huge_inputs(operator: str, size: float) -> None:
    torch.manual_seed(0)
    weights, wide = matrix(operator, torch.randn(5, 64) / 1000)
    x = torch.randn(2, 64).clamp(-1, 1) * size
    expected = x.double() @ wide.t()
    error = ROUNDING[operator] * x.abs().max() * wide.abs().sum(1) + 1e-43  # of subnormal numbers
    assert ((product(operator, x, *weights).double() - expected).abs() <= error).all()


def test_every_byte_meets_every_digit(operator: str) -> None:
    """Also -128, which rounding does not give, and sums that are as large as they can be."""
    if operator != "int8_row_product":
        return
    values = torch.arange(-128, 128, dtype=torch.int8).repeat(66_000 // 256 + 1)
    values = torch.stack([values, torch.full_like(values, -128), torch.full_like(values, 127)])
    x = torch.linspace(-1, 1, values.shape[1])[None]
    for rows in (x, torch.ones_like(x), -torch.ones_like(x)):
        got = int8_row_product(rows, values, torch.ones(3))
        assert_close(operator, got, rows, values.double(), None)


def test_gradients_are_refused(operator: str) -> None:
    weights, _ = matrix(operator, torch.randn(5, 64))
    x = torch.randn(2, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no gradients: call them under torch\.no_grad"):
        product(operator, x, *weights)
    with torch.no_grad():
        assert not product(operator, x, *weights).requires_grad


def test_arguments_that_do_not_fit_are_refused(operator: str) -> None:
    """Before memory behind them is read."""
    weights, _ = matrix(operator, torch.randn(5, 64))
    with pytest.raises(RuntimeError, match="do not fit together"):
        product(operator, torch.randn(2, 200), *weights)


def lists(*matrices: list[Tensor]) -> list[list[Tensor]]:
    """The arguments of an operator for some matrices."""
    return [[*parts] for parts in zip(*matrices, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(), (3,), (4, 7), (0, 5, 0), (1, 64, 2, 9)])
def test_matrices_together_are_each_alone(
    operator: str, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    call, d_in = getattr(torch.ops.addnorm, operator), 96
    matrices = [matrix(operator, torch.randn(n or 1, d_in).to(dtype))[0] for n in sizes]
    matrices = [[part[:n] for part in each] for n, each in zip(sizes, matrices, strict=True)]
    given = lists(*matrices) or [[]] * (1 if operator == "row_product" else 2)
    biases = [torch.randn(n).to(dtype) for n in sizes]
    for rows in (0, 1, 5):
        x = torch.randn(rows, d_in).to(dtype)
        for shifts in (biases, [None] * len(sizes)):
            alone = [product(operator, x, *m, b) for m, b in zip(matrices, shifts, strict=True)]
            together = call(x, *given, biases if shifts is biases else None)
            assert torch.equal(together, torch.cat([x[:, :0], *alone], 1))


def test_lists_that_do_not_fit_are_refused(operator: str) -> None:
    weights, _ = matrix(operator, torch.randn(5, 64))
    wrong, _ = matrix(operator, torch.randn(5, 256))
    call, x, bias = getattr(torch.ops.addnorm, operator), torch.randn(2, 64), torch.ones(5)
    for matrices, biases in (
        (
            lists(weights, wrong if operator == "row_product" else [w.float() for w in weights]),
            None,
        ),
        (lists(weights, weights), [bias]),
        (lists(weights), [bias, bias]),
        (lists(weights), [torch.ones(6)]),
        ([*lists(weights)[:-1], []], [bias]),
    ):
        with pytest.raises(RuntimeError, match="do not fit together"):
            call(x, *matrices, biases)


def test_matrices_in_another_order_are_refused(operator: str) -> None:
    """By the operator itself; the functions copy them."""
    weights, _ = matrix(operator, torch.randn(5, 64))
    turned = [weights[0].t().contiguous().t(), *weights[1:]]
    call, x = getattr(torch.ops.addnorm, operator), torch.randn(2, 64)
    with pytest.raises(RuntimeError, match="do not fit together"):
        call(x, *lists(turned), None)
    with pytest.raises(RuntimeError, match="do not fit together"):
        call(x, *lists(weights), [torch.ones(5, 2)[:, 0]])


def test_their_fake_has_the_shape(operator: str) -> None:
    weights, _ = matrix(operator, torch.randn(5, 64))
    x, *arguments = [t.to("meta") for t in (torch.randn(2, 64), *weights)]
    y = getattr(torch.ops.addnorm, operator)(x, *lists(arguments, arguments), None)
    assert (y.device.type, y.shape, y.dtype) == ("meta", (2, 10), torch.float32)


def test_rows_of_any_axes(operator: str) -> None:
    """Also those that are not contiguous."""
    torch.manual_seed(0)
    weights, _ = matrix(operator, torch.randn(5, 64))
    call, x = getattr(torch.ops.addnorm, operator), torch.randn(3, 2, 64)
    want = product(operator, x.flatten(0, 1), *weights).view(3, 2, 5)
    assert torch.equal(call(x, *lists(weights), None), want)
    assert torch.equal(call(x.transpose(0, 1), *lists(weights), None), want.transpose(0, 1))
    [row] = product(operator, x[0, :1], *weights)
    assert torch.equal(call(x[0, 0], *lists(weights), None), row)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@pytest.mark.parametrize("dtype", DTYPES if multiplies_bfloat16 else DTYPES[:1])
@pytest.mark.parametrize("shift", [True, False])
def test_many_rows_are_multiplied_by_onednn(shift: bool, dtype: torch.dtype) -> None:
    """As a packed copy has it, which is of another matrix here."""
    torch.manual_seed(0)
    load_operator("row_product")
    weight, other = torch.randn(2, 37, 48).to(dtype)
    x, bias = torch.randn(3, 2, 48).to(dtype), torch.randn(37).to(dtype) if shift else None
    biases = None if bias is None else [bias]
    for copy in (other, packed_weight(other)):
        for few, used in ((6, weight), (5, other), (0, other)):
            y = torch.ops.addnorm.row_product(x, [weight], biases, copy, few)
            want = F.linear(x.double(), used.double(), None if bias is None else bias.double())
            assert y.dtype is dtype
            torch.testing.assert_close(y.double(), want, rtol=1e-2, atol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [*SIZES, (130, 64)])
def test_inputs_in_bytes(size: tuple[int, int], dtype: torch.dtype) -> None:
    """`int4_row_product` rounds each block of 32 numbers to bytes, once and for all."""
    load_operator("int4_row_product")
    torch.manual_seed(0)
    d_out, d_in = size
    weights, wide = matrix("int4_row_product", torch.randn(size))
    for rows in (0, 1, 3, 5, 64, 70):
        x, bias = torch.randn(rows, d_in).to(dtype), torch.randn(d_out).to(dtype)
        y = int4_row_product(x, *weights, bias, digits=1)
        assert (y.dtype, y.shape) == (dtype, (rows, d_out))
        near = rounded_blocks(x.float())
        error = 2**-8 * (near.double() @ wide.t() + bias).abs() if dtype is torch.bfloat16 else 0
        steps = F.pad(x.float(), (0, -d_in % 32)).unflatten(1, (-1, 32)).abs().amax(-1) / 127
        error += 0.51 * steps.double().repeat_interleave(32, 1)[:, :d_in] @ wide.abs().t()
        assert ((y.double() - x.double() @ wide.t() - bias).abs() <= error + 1e-5).all()
        if dtype is torch.float32:
            exact = near.double() @ wide.t()
            sizes = near.abs().double() @ wide.abs().t()
            again = int4_row_product(near, *weights, digits=1).double()
            assert ((again - exact).abs() <= 1e-6 * sizes).all()
            alone = [int4_row_product(row, *weights, bias, digits=1) for row in x.split(1)]
            assert torch.equal(y, torch.cat([y[:0], *alone]))


INTEGERS = [(0, 3, 64), (1, 0, 64), (2, 3, 0), (1, 1, 1), (3, 5, 63), (7, 9, 65), (9, 33, 1000)]
"""Sizes of products of integers, `(rows, d_out, d_in)`."""


@pytest.mark.long
def test_products_of_integers_are_exact() -> None:
    """Of any sizes and bytes; for more than few rows they are torch's."""
    load_operator("int8_matmul")
    torch.manual_seed(0)
    for rows, d_out, d_in in INTEGERS:
        x = torch.randint(-127, 128, (rows, d_in), dtype=torch.int8)
        values = torch.randint(-128, 128, (d_out, d_in), dtype=torch.int8)
        for a, q in ((x, values), (127 - 0 * x, 0 * values - 128)):
            want = (a.double() @ q.double().t()).int()
            assert torch.equal(int8_matmul(a, q), want)
            if want.numel() and d_in > 1:
                assert torch.equal(torch.ops.addnorm.int8_matmul(a, q, rows - 1), want)
        spread = torch.stack([x, x], -1)[..., 0]
        assert torch.equal(
            torch.ops.addnorm.int8_matmul(spread, values, rows), int8_matmul(x, values)
        )
    with pytest.raises(RuntimeError, match="do not fit together"):
        int8_matmul(x, values[:, 1:])
    fake = torch.ops.addnorm.int8_matmul(x.to("meta"), values.to("meta"), 1)
    assert (fake.shape, fake.dtype) == ((9, 33), torch.int32)


@pytest.mark.slow
@needs_tools
@on_each_level
@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_on_arm(name: str, level: str, tmp_path: Path) -> None:
    """Integers to the bit, since their sums are exact."""
    load_operator(name)
    run = on_arm(name, level, tmp_path)
    torch.manual_seed(0)
    if name == "int8_matmul":
        for rows, d_out, d_in in INTEGERS:
            x = torch.randint(-127, 128, (rows, d_in), dtype=torch.int8)
            values = torch.randint(-128, 128, (d_out, d_in), dtype=torch.int8)
            assert torch.equal(*run(x, values), int8_matmul(x, values))
        return
    for dtype in DTYPES:
        for size in SIZES:
            weights, wide = matrix(name, torch.randn(size).to(dtype))
            for rows, digits in ((3, [2]), (5, [2]), (5, [1])) if "int4" in name else ((3, []),):
                x = torch.randn(rows, size[1])
                x = rounded_blocks(x) if digits == [1] else x.to(dtype)
                [got] = run(x, *weights, *digits)
                assert_close("row_product" if digits == [1] else name, got, x, wide, None)
            if name == "int8_row_product":
                assert torch.equal(got, product(name, x, *weights))
