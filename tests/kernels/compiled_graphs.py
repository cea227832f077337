"""Run by `test_compiled.py` in a process without run-time checks of types, which no tracer knows.

python -m tests.kernels.compiled_graphs
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from functorch.compile import make_boxed_func  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F

from addnorm.kernels import activations, attention, causal_attention, linear
from addnorm.kernels.build import load_operator
from addnorm.nn.activations import MANY, gated, gelu_tanh
from addnorm.nn.attention.kernels import dot_product_attention
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.linear import Linear, linears
from addnorm.nn.masks import Causal

OPERATORS = (
    activations.OPERATOR,
    attention.FORWARD,
    attention.OPERATOR,
    causal_attention.OPERATOR,
    linear.OPERATOR,
)
EVERY = KernelChoices(
    product="operator",
    bfloat16_product="operator",
    attention="operator",
    attention_forward="operator",
    causal_attention="operator",
    activation="operator",
)


def layers() -> tuple[Callable[[Tensor], Tensor], Tensor, list[Tensor]]:
    """Three linear layers on one input, which are one product, and one on another."""
    modules = [Linear(24, n) for n in (24, 8, 8)]

    def joined(x: Tensor) -> Tensor:
        return modules[0](torch.cat(linears(x, modules), -1)[..., :24].float())

    return joined, torch.randn(4, 40, 24), [p for m in modules for p in m.parameters()]


def attend() -> tuple[Callable[[Tensor], Tensor], Tensor, list[Tensor]]:
    x, mask = torch.randn(2, 128, 3, 4, 16), Causal()

    def causal(x: Tensor) -> Tensor:
        narrow = torch.is_autocast_enabled("cpu")
        q, k, v = (t.bfloat16() if narrow else t for t in x.permute(2, 0, 3, 1, 4).unbind())
        return dot_product_attention(q, k, v, mask)

    return causal, x, []


def activate() -> tuple[Callable[[Tensor], Tensor], Tensor, list[Tensor]]:
    def both(x: Tensor) -> Tensor:
        x = x.bfloat16() if torch.is_autocast_enabled("cpu") else x
        return gated(F.silu, gelu_tanh(x), x)

    return both, torch.randn(3, MANY), []


def computed(
    function: Callable[[Tensor], Tensor], x: Tensor, weights: list[Tensor], *, narrow: bool
) -> list[Tensor]:
    """The result, and the gradients of `x` and of all weights."""
    leaf = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        y = function(leaf)
    dy = torch.linspace(-1, 1, y.numel()).to(y.dtype).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, [leaf, *weights], dy)]


def check(case: Callable[[], Any], *, narrow: bool, dynamic: bool) -> None:
    """A compiled graph calls the operator forward and backward, and computes the same."""
    torch.compiler.reset()
    function, x, weights = case()
    called = set[str]()

    def noted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        called.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted)
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    got = computed(compiled, x, weights, narrow=narrow)
    expected = computed(function, x, weights, narrow=narrow)
    assert all(map(torch.equal, got, expected))
    prefix = "causal_" if case is attend and not narrow else ""
    of_operator = {name for name in called if name.startswith(f"addnorm.{prefix}{CASES[case]}")}
    assert {"backward" in name for name in of_operator} == {False, True}, called


def check_vectorised() -> None:
    """`vmap` has no rule for an operator."""
    torch.compiler.reset()
    layer, x = Linear(24, 8), torch.randn(4, 40, 24)
    vectorised = torch.compile(lambda x: torch.func.vmap(layer)(x), backend="eager")
    torch.testing.assert_close(vectorised(torch.stack([x, x]))[1], layer(x))


def check_exported() -> None:
    """A graph is used where no operator is loaded."""
    torch.compiler.reset()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Linear(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            x = gelu_tanh(self.layer(x.transpose(1, 2)))
            q = x.unflatten(-1, (3, 8)).transpose(1, 2)
            return dot_product_attention(q, q, q, Causal())

    rows = {"x": {0: torch.export.Dim.DYNAMIC}}
    for strict in (False, True):
        inputs = (torch.randn(8, 24, 128),)
        program = torch.export.export(Model(), inputs, dynamic_shapes=rows, strict=strict)
        assert "addnorm" not in str(program.graph)
        assert program.module()(torch.randn(2, 24, 128)).shape[0] == 2

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Linear(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    any_rows = {"x": {0: torch.export.Dim("rows", min=2, max=1000)}}
    program = torch.export.export(
        Layer(), (torch.randn(8, 24),), dynamic_shapes=any_rows, strict=True
    )
    assert program.module()(torch.randn(500, 24)).shape[0] == 500


CASES = {layers: "linear", attend: "attention", activate: "activation"}


def main() -> None:
    """Check everything, or raise."""
    torch.manual_seed(0)
    for name in OPERATORS:
        load_operator(name)
    with use_choices(EVERY):
        for case, narrow, dynamic in product(CASES, (False, True), (False, True)):
            check(case, narrow=narrow, dynamic=dynamic)
        check_vectorised()
        check_exported()


if __name__ == "__main__":
    main()
