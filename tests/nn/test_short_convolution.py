"""Short convolutions against loops in float64, and what they refuse."""

import pytest
import torch
from hypothesis import given
from tests.contracts import context, started
from tests.nn.slots import FEW, SLOTS, passing
from tests.nn.test_delta import texts_alone
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.nn.masks import Causal
from addnorm.nn.positions import NoPosition
from addnorm.nn.short_convolution import GatedConvolutionConfig

RECORDS = [GatedConvolutionConfig(), GatedConvolutionConfig(kernel_size=4, bias=True)]
NAMES = ["gated_taps", "gated_taps_with_bias"]


def test_a_row_by_hand() -> None:
    """`b = c = h = x`, and taps of 1, 10 and 100: `x_t (x_{t-2}² + 10 x_{t-1}² + 100 x_t²)`."""
    mixer = GatedConvolutionConfig().build(1, NoPosition(), True).double()
    for weight in mixer.parameters():
        weight.data.fill_(1.0)
    mixer.short.conv.weight.data = torch.tensor([[[1.0, 10.0, 100.0]]]).double()
    x = torch.tensor([[[1.0], [2.0], [-1.0]]]).double()
    expected = [100.0, 2 * (10 + 400), -(1 + 40 + 100)]
    assert mixer(x, context(1, 3, Causal())).flatten().tolist() == expected


@pytest.mark.parametrize("config", RECORDS, ids=NAMES)
@FEW
@given(slots=SLOTS)
def test_every_tap_stays_in_its_text(
    config: GatedConvolutionConfig, slots: list[list[int]]
) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    mixer, held = started(config.build(4, NoPosition(), True)).double(), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    assert_close(mixer(x, passing(held)), texts_alone(mixer, x, held), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", RECORDS, ids=NAMES)
def test_torchs_depthwise_convolution(config: GatedConvolutionConfig) -> None:
    mixer, x = started(config.build(4, NoPosition(), True)).double(), torch.randn(2, 6, 4).double()
    inputs = mixer.in_gate_proj(x) * mixer.in_proj(x)
    conv = mixer.short.conv
    mixed = F.conv1d(inputs.mT, conv.weight, conv.bias, padding=conv.kernel_size[0] - 1, groups=4)
    expected = mixer.out_proj(mixer.out_gate_proj(x) * mixed[..., :6].mT)
    assert_close(mixer(x, context(2, 6)), expected)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel_size"):
        GatedConvolutionConfig(kernel_size=0)
