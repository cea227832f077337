"""A compiled step calls the operators, and computes with them what an eager one does."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.kernels.compiled_graphs import OPERATORS

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def operators() -> None:
    for name in OPERATORS:
        load_operator(name)


@pytest.mark.long
def test_compiled_graphs_call_operators_and_compute_the_same() -> None:
    """For fixed and dynamic sizes; not where `vmap` is traced, nor where a graph is exported."""
    command = [sys.executable, "-m", "tests.kernels.compiled_graphs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("of_x", [False, True])
@pytest.mark.parametrize("of_weights", [False, True])
def test_outlines_of_linear_are_those_of_its_results(*, of_x: bool, of_weights: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, dy = torch.randn(5, 3).to(dtype), torch.randn(5, 6).to(dtype)
        weights, narrow = [torch.randn(4, 3), torch.randn(2, 3)], dtype is torch.bfloat16
        biases = [torch.randn(4), torch.randn(2)]
        check_outline(torch.ops.addnorm.linear, x, weights, biases, narrow)
        check_outline(torch.ops.addnorm.linear_backward, dy, x, weights, of_x, of_weights)


def test_outlines_of_other_operators_are_those_of_their_results() -> None:
    x, up = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    for other in (None, up):
        check_outline(torch.ops.addnorm.activation, x, other, "silu")
        check_outline(torch.ops.addnorm.activation_backward, up, x, other, "silu")
    q, k, v = (torch.randn(2, 64, 3, 16) for _ in range(3))
    check_outline(torch.ops.addnorm.causal_attention, q, k, v, 0.25)
    check_outline(torch.ops.addnorm.causal_attention_backward, v, q, k, v, 0.25)
    q, k, v = (t.bfloat16() for t in (q, torch.randn(2, 96, 3, 16), torch.randn(2, 96, 3, 16)))
    y, log_sums = torch.ops.addnorm.attention_forward(q, k, v, False, 0.25)
    check_outline(torch.ops.addnorm.attention_forward, q, k, v, False, 0.25)
    check_outline(torch.ops.addnorm.attention_backward, y, q, k, v, y, log_sums, False, 0.25)


def check_outline(operator: Any, *inputs: object) -> None:
    """Raise if an operator's schema or its outline without numbers differs from what it returns."""
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator.default, inputs, test_utils=utilities)
