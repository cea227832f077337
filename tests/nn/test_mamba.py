"""Mamba-2: a row by hand, independent texts, and the order of its gate and norm."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.contracts import context, started
from tests.nn.slots import FEW, SLOTS, passing
from tests.nn.test_delta import texts_alone
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.nn.mamba import GroupRMSNorm, Mamba2Config
from addnorm.nn.masks import Causal
from addnorm.nn.positions import NoPosition

RECORDS = [
    Mamba2Config(n_heads=4, d_head=2, d_state=3, n_groups=2, chunk=2),
    Mamba2Config(
        n_heads=2, d_state=2, kernel_size=2, kernel_bias=False, bias=True, order="norm_gate"
    ),
]
NAMES = ["selective", "selective_norm_first"]


@pytest.mark.parametrize("order", ["gate_norm", "norm_gate"])
def test_a_row_by_hand(order: Any) -> None:
    """All maps are `s = silu(x)`, steps are one, the decay is one half, and D is 2.

    The state is s₁² after the first token and s₁²/2 + s₂² after the second, which s reads.
    """
    config = Mamba2Config(n_heads=1, d_head=1, d_state=1, kernel_size=1, order=order, eps=4.0)
    mixer = config.build(1, NoPosition(), True).double()
    for name, weight in mixer.named_parameters():
        weight.data.fill_(0.0 if name.startswith(("step_proj", "short.conv.bias")) else 1.0)
    mixer.step_bias.data.fill_(math.log(math.e - 1))
    mixer.log_speed.data.fill_(math.log(math.log(2)))
    mixer.skip.data.fill_(2.0)
    x = torch.tensor([[[1.0], [-2.0]]]).double()
    first, second = (v / (1 + math.exp(-v)) for v in (1.0, -2.0))
    outputs = [first**3 + 2 * first, second * (first**2 / 2 + second**2) + 2 * second]

    def gated(y: float, gate: float) -> float:
        if order == "gate_norm":
            return y * gate / math.sqrt((y * gate) ** 2 + 4)
        return gate * y / math.sqrt(y**2 + 4)

    expected = [gated(y, gate) for y, gate in zip(outputs, (first, second), strict=True)]
    got = mixer(x, context(1, 2, Causal())).flatten().tolist()
    assert got == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("config", RECORDS, ids=NAMES)
@FEW
@given(slots=SLOTS)
def test_every_text_begins_at_zero(config: Mamba2Config, slots: list[list[int]]) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    mixer, held = started(config.build(4, NoPosition(), True)).double(), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    assert_close(mixer(x, passing(held)), texts_alone(mixer, x, held), rtol=0, atol=1e-12)


def test_groups_are_normalised_apart() -> None:
    norm, x = GroupRMSNorm(6, 2, 0.0), torch.randn(3, 6)
    y = norm(x).unflatten(-1, (2, 3))
    assert_close(y.square().mean(-1), torch.ones(3, 2))
    assert_close(y[:, 0], GroupRMSNorm(3, 1, 0.0)(x[:, :3]))


def test_the_width_is_twice_the_models_by_default() -> None:
    mixer = Mamba2Config(n_heads=4).build(8, NoPosition(), True)
    assert mixer.out_proj.in_features == 16
    assert mixer.new_cache().stages[1].width == 4


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"n_heads": 4, "n_groups": 3}, r"n_groups = 3 .* one of \[1, 2, 4\]"),
        ({"order": "norm"}, "order"),
        ({"eps": 0.0}, "eps"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Mamba2Config(**fields)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 d_model = 16 .* one of \[1, 2, 4, 8, 16\]"):
        DecoderConfig(d_model=8, attention=Mamba2Config(n_heads=3))
