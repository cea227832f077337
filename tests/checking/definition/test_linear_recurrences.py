"""The definitions of linear recurrences and short convolutions, with rows by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from addnorm.checking.definition.linear_recurrences import (
    convolved,
    gated_convolution,
    gated_delta,
    mamba2,
)
from addnorm.checking.definition.mixers import MIXERS
from addnorm.checking.definition.texts import MixerContext, Texts
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.norms import DynamicTanhConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig

ONE = torch.ones(1, 1).double()


def place(*lengths: int) -> MixerContext:
    return MixerContext(texts=Texts.of(lengths), causal=True, position=None)


def test_every_mixer_has_its_definition() -> None:
    assert MIXERS.of(GatedDeltaConfig()) is gated_delta
    assert MIXERS.of(Mamba2Config()) is mamba2
    assert MIXERS.of(GatedConvolutionConfig()) is gated_convolution


def test_the_gated_delta_rule_by_hand() -> None:
    """Keys are the sign of x, values `s = silu(x)`, the decay and the rate one half.

    A text of two tokens, then the first token again, as a text of its own.
    """
    weights = {f"{name}_proj.weight": ONE for name in ("q", "k", "v", "gate", "out")}
    weights |= {f"{name}_proj.weight": 0 * ONE for name in ("rate", "decay")}
    weights |= {
        "short.conv.weight": torch.ones(3, 1, 1).double(),
        "decay_bias": torch.tensor([math.log(math.e - 1)]).double(),
        "log_speed": torch.tensor([math.log(math.log(2))]).double(),
        "norm.weight": torch.ones(1).double(),
        "norm.alpha": torch.tensor([0.5]).double(),
        "norm.bias": torch.zeros(1).double(),
    }
    config = GatedDeltaConfig(n_heads=1, kernel_size=1, norm=DynamicTanhConfig())
    x = torch.tensor([[1.0], [-2.0], [1.0]]).double()
    s, t = (v / (1 + math.exp(-v)) for v in (1.0, -2.0))
    outputs = (s / 2, -(s / 4 - (t + s / 4) / 2), s / 2)
    expected = [math.tanh(o / 2) * gate for o, gate in zip(outputs, (s, t, s), strict=True)]
    got = gated_delta(config, weights, x, place(2, 1)).flatten().tolist()
    assert got == pytest.approx(expected, rel=1e-4)  # the ε of unit length


def test_mamba2_by_hand() -> None:
    """All maps are `s = silu(x)`, steps are one, the decay is one half, and D is 2.

    A text of two tokens, then the first token again, as a text of its own.
    """
    weights = {f"{name}_proj.weight": ONE for name in ("v", "k", "q", "gate", "out")}
    weights |= {
        "step_proj.weight": 0 * ONE,
        "short.conv.weight": torch.ones(3, 1, 1).double(),
        "step_bias": torch.tensor([math.log(math.e - 1)]).double(),
        "log_speed": torch.tensor([math.log(math.log(2))]).double(),
        "skip": torch.tensor([2.0]).double(),
        "norm.weight": torch.tensor([3.0]).double(),
    }
    config = Mamba2Config(n_heads=1, d_head=1, d_state=1, kernel_size=1, eps=4.0)
    x = torch.tensor([[1.0], [-2.0], [1.0]]).double()
    s, t = (v / (1 + math.exp(-v)) for v in (1.0, -2.0))
    outputs = (s**3 + 2 * s, t * (s**2 / 2 + t**2) + 2 * t, s**3 + 2 * s)
    gated = [y * gate for y, gate in zip(outputs, (s, t, s), strict=True)]
    expected = [3 * y / math.sqrt(y**2 + 4) for y in gated]
    got = mamba2(config, weights, x, place(2, 1)).flatten().tolist()
    assert got == pytest.approx(expected, rel=1e-9)


def test_a_gated_convolution_by_hand() -> None:
    weights = {
        f"{name}.weight": ONE for name in ("in_gate_proj", "in_proj", "out_gate_proj", "out_proj")
    }
    weights["short.conv.weight"] = torch.tensor([[[1.0, 10.0, 100.0]]]).double()
    x = torch.tensor([[1.0], [2.0], [-1.0], [3.0]]).double()
    got = gated_convolution(GatedConvolutionConfig(), weights, x, place(3, 1))
    assert got.flatten().tolist() == [100.0, 820.0, -141.0, 2700.0]


def test_torchs_depthwise_convolution() -> None:
    weights = {"conv.weight": torch.randn(5, 1, 3).double(), "conv.bias": torch.randn(5).double()}
    x = torch.randn(7, 5).double()
    texts = [
        F.conv1d(text.T, weights["conv.weight"], weights["conv.bias"], padding=2, groups=5)
        for text in x.split([4, 1, 2])
    ]
    expected = torch.cat([y[:, :-2].T for y in texts])
    torch.testing.assert_close(convolved(weights, x, Texts.of([4, 1, 2])), expected)
