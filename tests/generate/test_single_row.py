"""Large layers on a single row are found in a traced graph, whatever the form of their weights."""

import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from tests.generate.test_compiled import decoder
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.generate import CompiledContinuation, GreedyConfig, generate, graphs, single_row
from addnorm.generate.single_row import dtypes_of, operators_of
from addnorm.kernels.build import load_operator
from addnorm.models import DecoderConfig
from addnorm.quantize import Int4Config, quantize, quantize_int8, with_weights
from addnorm.quantize.int4 import Int4Matrix, round_nearest
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import DynamicRounding, QuantizedLinear, Unrounded

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")


def int4(weight: Tensor) -> Int4Matrix:
    return Int4Matrix(round_nearest(weight, 32), weight.shape[1])


@pytest.fixture
def _operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours for every layer."""
    monkeypatch.setattr(single_row, "LARGE_FOR_OPERATORS", 1)
    for module in (graphs, single_row):
        monkeypatch.setattr(module, "row_product", lambda dtype: "operator")


def in_another_order(model: nn.Module) -> None:
    """Let every matrix be a transposed view, as those of GPT-2's file are."""
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.dim() == 2:
            tensor.data = tensor.data.t().contiguous().t()


class Turned(nn.Module):
    """A product with the columns of an int4 matrix."""

    def __init__(self, matrix: Int4Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix.dequantized().t())


class Halved(nn.Module):
    """A product with half of an int8 matrix, which is not scaled."""

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix.values.to(x.dtype)) * 0.5


CASES: list[tuple[Callable[[Tensor], nn.Module], list[str]]] = [
    (lambda w: QuantizedLinear(Int8Matrix(w), DynamicRounding(), None), ["int8_row_product"]),
    (
        lambda w: QuantizedLinear(Int8Matrix(w), Unrounded(), nn.Parameter(torch.ones(64))),
        ["int8_row_product"],
    ),
    (lambda w: QuantizedLinear(int4(w), Unrounded(), None), ["int4_row_product"]),
    (lambda w: Turned(int4(w)), []),
    (lambda w: Halved(Int8Matrix(w)), []),
]


@pytest.mark.long
@pytest.mark.parametrize(("build", "expected"), CASES)
@pytest.mark.usefixtures("_operators")
def test_the_operator_of_each_form_of_weights(
    build: Callable[[Tensor], nn.Module], expected: list[str]
) -> None:
    torch.manual_seed(0)
    module, x = build(torch.randn(64, 64)), torch.randn(1, 1, 64)
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        program = graphs._traced(module, (x,), (None,))
        assert operators_of(program) == expected
        for name in expected:
            load_operator(name)
        rounding = {"rtol": 0, "atol": 2e-3} if "int4_row_product" in expected else {}
        torch.testing.assert_close(program.module()(x), plain(module, x), **rounding)


class Projections(nn.Module):
    """Layers on the same input, of different sizes; one without a bias, one computes its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 24), nn.Linear(32, 8), nn.Linear(32, 8, bias=False)
        self.w = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        k, v, q = self.k(x), self.v(x), self.q(x)[..., :8]
        shifted = F.linear(x, self.k.weight, 2 * self.q.bias[:8])
        return self.w(torch.cat([k, v, q, shifted], -1)) * x


@pytest.mark.long
@pytest.mark.usefixtures("_operators")
def test_layers_on_the_same_row_are_one_call() -> None:
    torch.manual_seed(0)
    module, x = Projections().requires_grad_(False), torch.randn(1, 1, 32)
    load_operator("row_product")
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        program = graphs._traced(module, (x,), (None,))
        target = torch.ops.addnorm.row_product.default
        sizes = [len(n.args[1]) for n in program.graph.nodes if n.target is target]  # pyright: ignore[reportArgumentType]
        assert sorted(sizes) == [1, 1, 1, 2]
        torch.testing.assert_close(program.module()(x), module(x))


def plain(module: nn.Module, x: Tensor) -> Tensor:
    """The module's result without rounding of its inputs."""
    if not isinstance(module, QuantizedLinear):
        return module(x)
    y = x @ module.matrix.dequantized().t()
    return y if module.bias is None else y + module.bias


def test_only_types_of_large_weights_have_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dtypes_of(decoder()) == []
    monkeypatch.setattr(single_row, "LARGE_FOR_OPERATORS", 100)
    assert dtypes_of(decoder()) == [torch.float32]
    assert dtypes_of(decoder().bfloat16()) == [torch.bfloat16]
    assert torch.int8 in dtypes_of(quantize_int8(decoder()))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.usefixtures("_operators")
def test_graphs_with_operators_generate_the_same(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model = DecoderConfig(d_model=64, n_layers=2).build(vocab_size=60).eval()
    if form == "int4":
        quantize(model, Int4Config())
    elif form != "float32":
        with_weights(model, form)
    prompts, greedy = [[1, 2, 3]], GreedyConfig()
    with monkeypatch.context() as patch:
        for module in (graphs, single_row):
            patch.setattr(module, "row_product", lambda dtype: "loop")
        loops = CompiledContinuation(model)
    [[expected]] = generate(loops, prompts, greedy, max_new_tokens=12, eos_id=None)
    for _ in range(2):  # compiled, and from disk
        in_another_order(model)
        ours = CompiledContinuation(model)
        [[text]] = generate(ours, prompts, greedy, max_new_tokens=12, eos_id=None)
        assert text.ids == expected.ids
        exact = {"bfloat16": 1e-2, "int4": 1e-4}.get(form, 1e-5)
        assert text.score == pytest.approx(expected.score, rel=exact)
