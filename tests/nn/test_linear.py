"""The linear layer equals `F.linear` in values and gradients, for every kernel."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.models import DecoderConfig
from addnorm.nn import linear as module
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.linear import MANY_ROWS, Linear, linear, linears


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


def test_a_part_of_a_matrix_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_rms_norm_takes_strided_and_empty_tensors() -> None:
    x, w = torch.randn(6, 4, 3).transpose(0, 2), torch.randn(6, 5).t()
    torch.testing.assert_close(linear(x, w), F.linear(x, w), rtol=1e-5, atol=1e-5)
    assert linear(torch.randn(0, 6), w).shape == (0, 5)
    assert linear(torch.randn(2, 0, 6), w).shape == (2, 0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", list(product(range(4), repeat=3)))
def test_the_smallest_sizes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    """None in any dimension, and one to three, whatever stands beside them in memory."""
    rows, d_in, d_out = sizes
    whole = [torch.full((n + 2, d_in + 2), torch.nan, dtype=dtype) for n in (rows, d_out)]
    inputs = [x[1:-1, 1:-1].copy_(torch.randn(len(x) - 2, d_in)) for x in whole]
    inputs.append(torch.randn(d_out, dtype=dtype))
    wide = gradients(F.linear, *(x.double() for x in inputs))
    with use_choices(KernelChoices(product="onednn", bias="fused")):
        got = gradients(linear, *inputs)
    tolerance = 1e-5 if dtype is torch.float32 else 0.3
    for ours, expected in zip(got, wide, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=tolerance)


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


needs_bfloat16 = pytest.mark.skipif(
    not module.multiplies_bfloat16, reason="this processor multiplies no bfloat16"
)


@needs_bfloat16
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    d_in=st.integers(1, 40),
    d_out=st.integers(1, 40),
    autocast=st.booleans(),
)
def test_a_bias_within_the_product_is_that_of_torch(shape, d_in, d_out, autocast) -> None:
    inputs = [torch.randn(*shape, d_in), torch.randn(d_out, d_in), torch.randn(d_out)]
    given = inputs if autocast else [x.bfloat16() for x in inputs]
    with use_choices(KernelChoices(bias="fused")), torch.autocast("cpu", enabled=autocast):
        found = gradients(linear, *given)
    assert [x.dtype for x in found] == [torch.bfloat16, *(x.dtype for x in given)]
    with torch.autocast("cpu", enabled=autocast):
        for got, want in zip(found, gradients(F.linear, *given), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@needs_bfloat16
def test_a_bias_is_fused_in_bfloat16_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = module._pointwise
    monkeypatch.setattr(module, "_pointwise", lambda *a: (calls.append(a), kernel(*a))[1])
    x, w, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2)
    whole = torch.randn(2, 12)
    with use_choices(KernelChoices(bias="fused")):
        linear(x, w, b)
        with torch.autocast("cpu", dtype=torch.float16):
            linear(x, w, b)
        with torch.autocast("cpu"):
            linear(x, w)
            linear(x[:1], w, b)
            linear(x, whole[:, :8:2], b)
            assert linear(x.double(), w.double(), b.double()).dtype is torch.float64
            assert not calls
            linear(x, w, b)
            assert len(calls) == 1
            monkeypatch.setattr(module, "multiplies_bfloat16", False)
            linear(x, w, b)  # as on a processor without such products, whatever a run began with
    with torch.autocast("cpu"):
        linear(x, w, b)
    assert len(calls) == 1


@needs_bfloat16
@pytest.mark.long
@pytest.mark.usefixtures("types_unchecked")
def test_a_compiled_bias_is_added_after_the_product() -> None:
    x, w, b = torch.randn(6, 8), torch.randn(5, 8), torch.randn(5)

    def in_bfloat16(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return F.gelu(linear(*inputs))

    compiled = torch.compile(in_bfloat16, fullgraph=True, backend="aot_eager")
    with use_choices(KernelChoices(bias="fused")):
        found = gradients(compiled, x, w, b)
    wide = gradients(lambda *t: F.gelu(F.linear(*t)), *(t.double() for t in (x, w, b)))
    for got, want in zip(found, wide, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=5e-2, atol=5e-2)


@needs_bfloat16
def test_gradients_of_a_fused_bias_have_gradients() -> None:
    x, w, b = (torch.randn(*n, requires_grad=True) for n in ((3, 4), (2, 4), (2,)))

    def penalty(f) -> Tensor:
        with torch.autocast("cpu"):
            y = f(x, w, b).float()
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return g.square().sum()

    with use_choices(KernelChoices(bias="fused")):
        ours = torch.autograd.grad(penalty(linear), [x, w, b])
    for got, want in zip(ours, torch.autograd.grad(penalty(F.linear), [x, w, b]), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-1)


@pytest.mark.parametrize("chosen", [KernelChoices(product="onednn"), KernelChoices(bias="fused")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_of_any_layout_is_added(chosen: KernelChoices, dtype: torch.dtype) -> None:
    x, weight = torch.ones(2, 3, dtype=dtype), torch.zeros(4, 3, dtype=dtype)
    numbers = torch.arange(8.0).to(dtype)
    for bias in (numbers[::2], numbers[:1].expand(4), numbers.view(4, 2)[:, 1]):
        with use_choices(chosen):
            found = linear(x, weight, bias)
        assert torch.equal(found, F.linear(x, weight, bias))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transforms_go_through_every_choice() -> None:
    x, weight = torch.randn(5, 4, 3), torch.randn(6, 3)
    with use_choices(KernelChoices(product="onednn")):
        rows = torch.func.vmap(lambda one: linear(one, weight))(x)
        slope = torch.func.grad(lambda w: linear(x, w).square().sum())(weight)
        _, tangent = torch.func.jvp(lambda w: linear(x, w), (weight,), (weight,))
    torch.testing.assert_close(rows, F.linear(x, weight))
    torch.testing.assert_close(tangent, F.linear(x, weight))
    assert slope.shape == weight.shape


def layers_of(*d_out: int, bias: bool = True) -> list[Linear]:
    return [Linear(6, n, bias=bias) for n in d_out]


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_one_input_are_one_product_in_bfloat16(bias: bool) -> None:
    layers, x = layers_of(6, 2, 2, bias=bias), torch.randn(2, MANY_ROWS, 6, requires_grad=True)
    parameters = [p for layer in layers for p in layer.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        apart, together = [layer(x) for layer in layers], linears(x, layers)
    assert [y.shape for y in together] == [y.shape for y in apart]
    assert len({y.untyped_storage().data_ptr() for y in together}) == 1
    dy = [torch.randn_like(y) for y in apart]
    ours, theirs = (torch.autograd.grad(ys, [x, *parameters], dy) for ys in (together, apart))
    for got, expected in zip((*together, *ours), (*apart, *theirs), strict=True):
        assert got.dtype is expected.dtype
        size = float(expected.detach().abs().max())
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02 * size)


@needs_bfloat16
def test_other_layers_are_called_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows, of float32, without a gradient, and layers that do more than multiply."""

    class Twice(Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    def is_together(layers: list[Linear], rows: int = MANY_ROWS, precision=torch.bfloat16) -> bool:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            a, b = linears(torch.randn(rows, 6), layers)
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    assert is_together(layers_of(3, 4))
    assert not is_together(layers_of(3, 4), rows=MANY_ROWS - 1)
    assert not is_together(layers_of(3, 4), precision=torch.float32)
    with torch.no_grad():
        assert not is_together(layers_of(3, 4))
    assert not is_together([*layers_of(3), Twice(6, 4)])
    assert not is_together([*layers_of(3), *layers_of(4, bias=False)])
    hooked = layers_of(3, 4)
    seen: list[int] = []
    hooked[1].register_forward_hook(lambda *_: seen.append(1))
    assert not is_together(hooked)
    assert seen
    frozen = layers_of(3, 4)
    frozen[0].weight.requires_grad_(False)
    assert not is_together(frozen)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The operator is loaded, chosen in this thread, and the heights of its matrices are noted."""
    if not has_compiler():
        pytest.skip("needs a C++ compiler")
    load_operator(module.kernel.OPERATOR)
    calls: list[tuple[int, ...]] = []
    by_operator = module.kernel.linear

    def noted(x: Tensor, weights: Sequence[Tensor], *others: Any, **options: Any) -> Tensor:
        calls.append(tuple(len(weight) for weight in weights))
        return by_operator(x, weights, *others, **options)

    monkeypatch.setattr(module.kernel, "linear", noted)
    return calls


BY_OPERATOR = KernelChoices(product="operator", bfloat16_product="operator")
N = module.SEVERAL_ROWS


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("shape", [(N, 7), (5, N, 33), (2, 3, N, 64)], ids=str)
def test_the_operator_is_the_definition(
    operator: list[tuple[int, ...]], shape: tuple[int, ...], autocast: bool, bias: bool
) -> None:
    """Of inputs and weights of any layout, and in bfloat16 of inputs of either type."""
    inputs = [torch.randn(shape), torch.randn(19, shape[-1]), *[torch.randn(19)] * bias]
    sliced = torch.randn(*shape[:-1], shape[-1] + 3)[..., 1:-2].copy_(inputs[0])
    turned = inputs[0].transpose(0, -1).contiguous().transpose(0, -1)
    narrow = [inputs[0].bfloat16()] * autocast
    for x in (inputs[0], sliced, turned, *narrow):
        wide = gradients(F.linear, *(t.double() for t in (x, *inputs[1:])))
        with use_choices(BY_OPERATOR), torch.autocast("cpu", enabled=autocast):
            found = gradients(linear, x, *inputs[1:])
        types = [torch.bfloat16 if autocast else torch.float32, x.dtype]
        assert [t.dtype for t in found] == [*types, *[torch.float32] * (len(found) - 2)]
        for got, expected in zip(found, wide, strict=True):
            assert got.shape == expected.shape
            assert relative(got, expected) < (0.05 if autocast else 1e-5)
    assert operator == [(19,)] * (3 + autocast)


@pytest.mark.parametrize("autocast", [False, True])
def test_layers_of_one_input_are_one_product_of_the_operator(
    operator: list[tuple[int, ...]], autocast: bool
) -> None:
    x = torch.randn(2, N, 6, requires_grad=True)
    for bias in (True, False):
        layers = layers_of(6, 2, 3, bias=bias)
        leaves = [x, *(p for layer in layers for p in layer.parameters())]
        with use_choices(BY_OPERATOR), torch.autocast("cpu", enabled=autocast):
            together = linears(x, layers)
        wide = [layer.weight.double() for layer in layers]
        biases = [layer.bias.double() if bias else None for layer in layers]
        apart = [F.linear(x.double(), *each) for each in zip(wide, biases, strict=True)]
        dy = [torch.randn_like(y) for y in together]
        found = torch.autograd.grad(together, leaves, dy)
        expected = torch.autograd.grad(apart, leaves, [t.double() for t in dy])
        for got, want in zip((*together, *found), (*apart, *expected), strict=True):
            assert relative(got, want.double()) < (0.05 if autocast else 1e-5)
    assert operator == 2 * [(6, 2, 3)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whatever_the_operator_does_not_take_is_left_to_others(
    operator: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, b = torch.randn(N, 6), torch.randn(4, 6), torch.randn(4)

    class Wrapped(Tensor):
        pass

    others: list[tuple[Tensor, Tensor, Tensor | None]] = [
        (x[:-1], w, b),
        (x.double(), w.double(), b.double()),
        (x, torch.randn(6, 4).t(), b),
        (x, torch.randn(4, 12)[:, ::2], b),
        (x, w, torch.randn(8)[::2]),
        (x.as_subclass(Wrapped), w, b),
        (x[:, :0], w[:, :0], b),
    ]
    with use_choices(BY_OPERATOR):
        for each in others:
            torch.testing.assert_close(linear(*each), F.linear(*each), rtol=1e-4, atol=1e-5)
        rows = torch.func.vmap(lambda one: linear(one, w, b))(x.expand(3, -1, -1))
        torch.testing.assert_close(rows[1], F.linear(x, w, b), rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", dtype=torch.float16):
            assert linear(x, w, b).dtype is torch.float16
        with torch.autocast("cpu"):
            assert linear(x.double(), w.double(), b.double()).dtype is torch.float64
            assert linear(x.bfloat16(), w.bfloat16(), b.bfloat16()).dtype is torch.bfloat16
        layers = layers_of(3, 4)
        layers[0].register_forward_hook(lambda *_: None)
        assert not operator
        linears(x, layers)
        assert operator == [(3,), (4,)]
        monkeypatch.setattr(module, "is_loaded", lambda _: False)
        linear(x, w, b)
    with use_choices(KernelChoices(product="operator")), torch.autocast("cpu"):
        linear(x, w, b)
    with use_choices(KernelChoices(bfloat16_product="operator")):
        linear(x, w, b)
    assert len(operator) == 2


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_trains_as_without_the_operator(
    operator: list[tuple[int, ...]], precision: str
) -> None:
    tokens = torch.randint(0, 40, (3, N))

    def trained(chosen: KernelChoices) -> list[float]:
        torch.manual_seed(0)
        config = DecoderConfig(d_model=32, n_layers=2, attention=AttentionConfig(n_heads=4))
        model = config.build(40)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses: list[float] = []
        for _ in range(12):
            with use_choices(chosen), torch.autocast("cpu", enabled=precision == "bfloat16"):
                logits = model(tokens).float()
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    without = trained(KernelChoices())
    assert not operator
    found = trained(BY_OPERATOR)
    assert operator
    assert found[-1] < found[0] - 0.3
    assert found == pytest.approx(without, rel=1e-5 if precision == "float32" else 1e-2)


@pytest.mark.usefixtures("operator")
def test_several_gradients_at_once_are_those_of_each() -> None:
    x, weight = torch.randn(N, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    many = torch.randn(3, N, 4)
    with use_choices(BY_OPERATOR):
        y = linear(x, weight)
        at_once = torch.autograd.grad(
            y, (x, weight), many, is_grads_batched=True, retain_graph=True
        )
        each = [torch.autograd.grad(y, (x, weight), one, retain_graph=True) for one in many]
    for got, expected in zip(at_once, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("operator")
def test_a_weight_that_no_gradient_needs_may_change() -> None:
    """As with `F.linear`: without a gradient of the input, the matrix is not kept for it."""
    x, weight = torch.randn(N, 6), torch.randn(4, 6, requires_grad=True)
    with use_choices(BY_OPERATOR):
        y = linear(x, weight)
    with torch.no_grad():
        weight.mul_(2)
    y.sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(4, 6), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("operator")
def test_sizes_that_do_not_fit_are_left_to_torch_which_names_them() -> None:
    with use_choices(BY_OPERATOR):
        assert module._is_for_operator(torch.randn(N, 6), [torch.randn(4, 6)], [])
        assert not module._is_for_operator(torch.randn(N, 6), [torch.randn(4, 7)], [])


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_whoever_counts_traces_or_watches_sees_each_layer(operator: list[tuple[int, ...]]) -> None:
    x, layers = torch.randn(N, 6), layers_of(3, 4)
    seen: list[nn.Module] = []
    replaced = layers_of(3, 4)
    replaced[1].forward = lambda input: input.new_zeros(N, 4)
    with use_choices(BY_OPERATOR):
        hook = register_module_forward_hook(lambda module, *_: seen.append(module))
        linears(x, layers)
        hook.remove()
        assert seen == layers
        assert not linears(x, replaced)[1].any()
        with FlopCounterMode(display=False) as counter:
            linears(x, layers)
        assert counter.get_total_flops() == 2 * x.numel() * 7
        traced = torch.jit.trace(layers[0], (x,))
        assert "Python" not in str(traced.graph)  # which no file can store
        assert torch.fx.symbolic_trace(layers[0])(x).shape == (N, 3)
