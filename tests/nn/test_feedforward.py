"""Feed-forward layers: the paper's formula in float64, shapes, gates and sizes.

The mixture of experts has a file of its own.
"""

import math
from typing import Any

import pytest
import torch
from tests.contracts import (
    FEEDFORWARD_RECORDS,
    check_gradients,
    check_module,
    check_records,
    named,
    started,
)
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.feedforward import (
    ACTIVATIONS,
    XIELU,
    ClampedFeedForwardConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
)
from addnorm.nn.moe import AnyFeedForwardConfig, MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig

DENSE = [r for r in FEEDFORWARD_RECORDS if not isinstance(r, MixtureOfExpertsConfig)]

PAPER = {
    "relu": lambda x: max(x, 0.0),
    "squared_relu": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def test_every_feedforward_has_a_record() -> None:
    check_records(AnyFeedForwardConfig, [*FEEDFORWARD_RECORDS, NoFeedForwardConfig()])
    assert PAPER.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("config", named(DENSE))
def test_contract(config: Any) -> None:
    x = torch.randn(2, 7, 4)
    check_module(lambda: config.build(4), lambda module, dtype: module(x.to(dtype)))


@pytest.mark.parametrize("config", named(DENSE))
def test_gradients(config: Any) -> None:
    smooth = config.activation not in ("relu", "squared_relu", "xielu")
    check_gradients(config.build(3), lambda m, x: m(x), torch.randn(2, 3), twice=smooth)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: Any) -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = torch.tensor([PAPER[name](a) for a in x.tolist()], dtype=torch.float64)
    assert_close(ACTIVATIONS[name](x), expected, rtol=0, atol=1e-12)


def test_xielu_equals_the_formula() -> None:
    """With its first numbers, `α_p = α_n = 0.8`; then with others."""
    act, x = XIELU().double(), torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = [
        0.8 * a * a + a / 2 if a > 0 else 0.8 * (math.expm1(a) - a) + a / 2 for a in x.tolist()
    ]
    assert act(x).tolist() == pytest.approx(expected, abs=2e-6)
    nn.init.constant_(act.alpha_p, 0.0)
    nn.init.constant_(act.alpha_n, math.log(math.e - 1))
    p, n = math.log(2), 0.5 + 1.0
    expected = [p * a * a + a / 2 if a > 0 else n * (math.expm1(a) - a) + a / 2 for a in x.tolist()]
    assert act(x).tolist() == pytest.approx(expected, abs=4e-6)


def test_xielu_of_small_numbers_in_bfloat16() -> None:
    """Near zero the curve is a parabola, whose factor has its gradient there too."""
    act, x = XIELU().bfloat16(), -torch.linspace(0.001, 0.1, 50).bfloat16()
    act(x).sum().backward()
    grad, expected = act.alpha_n.grad, sum(math.expm1(a) - a for a in x.tolist())
    assert grad is not None
    slope = 1 - math.exp(-0.3)  # of softplus where it is 0.8 - 0.5
    assert float(grad) == pytest.approx(slope * expected, rel=0.02)


@pytest.mark.parametrize("config", named(DENSE))
def test_equals_the_formula(config: Any) -> None:
    module = started(config.build(4)).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)

    def linear(name: str, x: Tensor) -> Tensor:
        layer: Any = module.get_submodule(name)
        y = x @ layer.weight.T
        return y if layer.bias is None else y + layer.bias

    act = module.activation if config.activation == "xielu" else ACTIVATIONS[config.activation]
    hidden = linear("up_proj", x)
    match config:
        case FeedForwardConfig():
            hidden = act(hidden)
        case GatedFeedForwardConfig():
            hidden = act(linear("gate_proj", x)) * hidden
        case ClampedFeedForwardConfig(limit=c):
            gate = linear("gate_proj", x).clip(max=c)
            hidden = act(gate) * (hidden.clip(-c, c) + config.offset)
        case _:
            raise AssertionError(config)
    assert_close(module(x), linear("down_proj", hidden), rtol=0, atol=1e-12)


def test_a_clamped_gate_by_hand() -> None:
    """Beyond a limit of 2 nothing grows: `2 σ(1.702 · 2) · (2 + 1)`, and zero below `−1`."""
    module = ClampedFeedForwardConfig(d_ff=1, limit=2.0, bias=False).build(1).double()
    for weight in module.parameters():
        weight.data.fill_(1.0)
    x = torch.tensor([[1.0], [5.0], [-1.0], [-9.0]], dtype=torch.float64)
    act = PAPER["quick_gelu"]
    expected = [act(1.0) * 2, act(2.0) * 3, 0.0, act(-9.0) * -1]
    assert module(x).flatten().tolist() == pytest.approx(expected)


SHAZEER = {"sigmoid": "GLU", "gelu": "GEGLU", "silu": "SwiGLU", "relu": "ReGLU"}


@pytest.mark.parametrize("activation", SHAZEER)
def test_the_gated_forms_by_hand(activation: Any) -> None:
    """GLU, GEGLU, SwiGLU and ReGLU (Shazeer 2020, eq. 5 and 6), feature by feature."""
    module = started(GatedFeedForwardConfig(d_ff=3, activation=activation).build(2)).double()
    x = torch.tensor([0.7, -1.3], dtype=torch.float64)
    gate, up, down = (
        getattr(module, name).weight.tolist() for name in ("gate_proj", "up_proj", "down_proj")
    )
    hidden = [
        PAPER[activation](sum(w * a for w, a in zip(g, x.tolist(), strict=True)))
        * sum(w * a for w, a in zip(u, x.tolist(), strict=True))
        for g, u in zip(gate, up, strict=True)
    ]
    expected = [sum(w * h for w, h in zip(row, hidden, strict=True)) for row in down]
    assert_close(module(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_check_shapes_of_the_original() -> None:
    module = FeedForwardConfig(d_ff=2048).build(512)
    assert module(torch.randn(2, 10, 512)).shape == (2, 10, 512)


def test_default_sizes() -> None:
    plain, gated = FeedForwardConfig().build(12), GatedFeedForwardConfig().build(12)
    assert plain.up_proj.out_features == 48
    assert gated.up_proj.out_features == 32
    matrices = [sum(p.numel() for p in m.parameters() if p.ndim == 2) for m in (plain, gated)]
    assert matrices[0] == matrices[1] == 8 * 12**2


def test_tokens_do_not_meet() -> None:
    module, x = FeedForwardConfig().build(8), torch.randn(2, 5, 8)
    order = torch.randperm(5)
    assert_close(module(x)[:, order], module(x[:, order]))


@pytest.mark.parametrize("config", [FeedForwardConfig, GatedFeedForwardConfig])
def test_dropout_between_the_matrices(config: Any) -> None:
    module, x = config(dropout=0.5).build(16), torch.randn(2, 3, 16)
    assert not torch.allclose(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


@pytest.mark.parametrize("config", [FeedForwardConfig, GatedFeedForwardConfig])
@pytest.mark.parametrize(
    ("field", "value"),
    [("d_ff", 0), ("d_ff", -4), ("activation", "rleu"), ("dropout", 1.0), ("dropout", -0.1)],
)
def test_impossible_values_are_refused(config: Any, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        config(**{field: value})
