"""Linear layers on several rows in a traced graph, whatever the form of their weights."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.generate.test_single_row import Halved, Turned, in_another_order, int4, plain
from torch import Tensor, nn

from addnorm.compiler import has_compiler
from addnorm.generate import (
    CompiledContinuation,
    GreedyConfig,
    few_rows,
    generate,
    graphs,
    single_row,
)
from addnorm.generate.single_row import operators_of
from addnorm.kernels.build import load_operator
from addnorm.kernels.row_products import NAMES
from addnorm.models import DecoderConfig
from addnorm.quantize import DynamicConfig, Int4Config, WeightsOnlyConfig, quantize, with_weights
from addnorm.quantize.int4 import rounded_blocks
from addnorm.quantize.int8 import Int8Matrix
from addnorm.quantize.layers import DynamicRounding, QuantizedLinear, RoundedByRange, Unrounded

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

FEW = 3
"""The number of rows that are few."""


@pytest.fixture(params=["operator", "loop"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our operators for every layer, or none."""
    kind: str = request.param
    few = FEW if kind == "operator" else 0
    for module in (graphs, single_row, few_rows):
        monkeypatch.setattr(module, "LARGE_FOR_OPERATORS", 1, raising=False)
        monkeypatch.setattr(module, "row_product", lambda dtype: kind)
        monkeypatch.setattr(module, "few_rows", lambda dtype: few, raising=False)
    for name in NAMES:
        load_operator(name)
    return kind


CASES: list[tuple[Callable[[Tensor], nn.Module], list[str]]] = [
    (lambda w: nn.Linear(64, 64), ["row_product"]),
    (lambda w: nn.Linear(64, 64, bias=False), ["row_product"]),
    (lambda w: QuantizedLinear(Int8Matrix(w), DynamicRounding(), None), ["int8_matmul"]),
    (lambda w: QuantizedLinear(Int8Matrix(w), RoundedByRange(3.0), None), ["int8_matmul"]),
    (lambda w: QuantizedLinear(Int8Matrix(w), Unrounded(), None), ["int8_row_product"]),
    (
        lambda w: QuantizedLinear(int4(w), Unrounded(), nn.Parameter(torch.ones(64))),
        ["int4_row_product"],
    ),
    (lambda w: QuantizedLinear(int4(w), DynamicRounding(), None), ["int4_row_product"]),
    (lambda w: Turned(int4(w)), []),
    (lambda w: Halved(Int8Matrix(w)), []),
]


@pytest.mark.long
@pytest.mark.parametrize(("build", "expected"), CASES)
def test_the_operator_of_each_form_of_weights(
    build: Callable[[Tensor], nn.Module], expected: list[str], kind: str
) -> None:
    torch.manual_seed(0)
    module = build(torch.randn(64, 64))
    batch = {0: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        program = graphs._traced(module, (torch.randn(2, 1, 64),), (batch,))
        assert operators_of(program) == (expected if kind == "operator" else [])
        for node in program.graph.find_nodes(
            op="call_function", target=torch.ops.addnorm.int4_row_product.default
        ):
            assert node.args[4:] == (
                (1,) if isinstance(module.activations, DynamicRounding) else ()
            )
        for rows in (2, FEW):  # packed copies are made when a graph is loaded
            x = torch.randn(rows, 1, 64)
            of_four = expected == ["int4_row_product"]  # else torch's kernel rounds x to bfloat16
            of_bytes = of_four and isinstance(module.activations, DynamicRounding)
            given = rounded_blocks(x) if of_bytes else x
            want, rounding = (plain(module, given), 2e-3) if of_four else (module(x), 1e-4)
            torch.testing.assert_close(program.module()(x), want, rtol=0, atol=rounding)
    assert [*module.state_dict()] == [*build(torch.randn(64, 64)).state_dict()]


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4", "int4, dynamic"])
def test_graphs_generate_the_same(
    form: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For few rows and for many, compiled and from disk; tied tables are in memory once."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model = DecoderConfig(d_model=64, n_layers=2).build(vocab_size=60).eval()
    if form.startswith("int4"):
        rounded = form == "int4, dynamic"
        quantize(model, Int4Config(activations=DynamicConfig() if rounded else WeightsOnlyConfig()))
    elif form != "float32":
        with_weights(model, form)
    prompts, greedy = [[1 + i, 2, 3] for i in range(5)], GreedyConfig()
    for _ in range(2):
        in_another_order(model)
        ours = CompiledContinuation(model, several=True)
        for n in (2, 5):
            want = generate(model, prompts[:n], greedy, max_new_tokens=6, eos_id=None)
            got = generate(ours, prompts[:n], greedy, max_new_tokens=6, eos_id=None)
            scores = ([text.score for [text] in texts] for texts in (got, want))
            exact = {"bfloat16": 2e-2, "int4": 1e-2, "int4, dynamic": 3e-2}.get(form, 1e-4)
            torch.testing.assert_close(*map(torch.tensor, scores), rtol=exact, atol=exact)
