"""The gated delta rule: a row by hand, chunks of any size = steps, and independent texts."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.contracts import context, started
from tests.nn.slots import BEGIN, FEW, PADDING, SLOTS, passing
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.delta import GatedDeltaConfig, delta_chunks, delta_steps, unit
from addnorm.nn.linear_recurrence import RecurrenceInputs
from addnorm.nn.masks import Causal
from addnorm.nn.norms import DynamicTanhConfig
from addnorm.nn.positions import NoPosition, RotaryConfig

RECORDS = [
    GatedDeltaConfig(n_heads=4, n_key_heads=2, d_key=3, d_value=2, chunk=2),
    GatedDeltaConfig(n_heads=2, kernel_size=2, decay="channel", gate="sigmoid", chunk=3),
]
NAMES = ["delta_of_shared_keys", "delta_of_channels"]
EACH = pytest.mark.parametrize("config", RECORDS, ids=NAMES)


def texts_alone(mixer: nn.Module, x: Tensor, slots: Tensor) -> Tensor:
    """The outputs of a causal mixer for every text alone, in its slots."""
    begins, y = (slots == BEGIN).cumsum(1), torch.zeros_like(x)
    for row in range(len(x)):
        for number in range(int(begins[row].max()) + 1):
            text = (slots[row] != PADDING) & (begins[row] == number)
            if text.any():
                y[row, text] = mixer(x[row : row + 1, text], context(1, int(text.sum())))[0]
    return y


def test_a_row_by_hand() -> None:
    """Keys are the sign of x and values `s = silu(x)`; the decay and the rate are one half.

    The state is s₁/2 after the first token and s₁/4 − ½ (s₂ + s₁/4) after the second, which the
    query −1 reads. The norm is `tanh(o / 2)`.
    """
    config = GatedDeltaConfig(n_heads=1, kernel_size=1, norm=DynamicTanhConfig())
    mixer = config.build(1, NoPosition(), True).double()
    for name, weight in mixer.named_parameters():
        weight.data.fill_(0.0 if name.startswith(("rate_proj", "decay_proj", "norm")) else 1.0)
    mixer.norm.weight.data.fill_(1.0)
    mixer.norm.alpha.data.fill_(0.5)
    mixer.decay_bias.data.fill_(math.log(math.e - 1))
    mixer.log_speed.data.fill_(math.log(math.log(2)))
    x = torch.tensor([[[1.0], [-2.0]]]).double()
    first, second = (v / (1 + math.exp(-v)) for v in (1.0, -2.0))
    outputs = [first / 2, -(first / 8 - second / 2)]
    expected = [math.tanh(o / 2) * s for o, s in zip(outputs, (first, second), strict=True)]
    got = mixer(x, context(1, 2, Causal())).flatten().tolist()
    assert got == pytest.approx(expected, rel=1e-4)  # the ε of unit length


def test_one_decay_of_each_feature_is_one_of_the_head() -> None:
    q, k, v = (torch.randn(1, 2, 7, 3).double() for _ in range(3))
    log_decay, rate = -torch.rand(1, 2, 7, 1).double(), torch.rand(1, 2, 7, 1).double()
    state = torch.zeros(1, 2, 3, 3).double()
    head = RecurrenceInputs(q=q, k=k, v=v, log_decay=log_decay, rate=rate)
    channels = RecurrenceInputs(q=q, k=k, v=v, log_decay=log_decay.expand(-1, -1, -1, 3), rate=rate)
    assert_close(delta_chunks(head, state, 4)[0], delta_chunks(channels, state, 4)[0])


@EACH
@FEW
@given(slots=SLOTS)
def test_every_text_begins_at_zero(config: GatedDeltaConfig, slots: list[list[int]]) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    mixer, held = started(config.build(4, NoPosition(), True)).double(), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    assert_close(mixer(x, passing(held)), texts_alone(mixer, x, held), rtol=0, atol=1e-12)


def test_without_decay_a_repeated_key_is_corrected() -> None:
    """With rate one, the value of a key is replaced: the delta rule of Widrow & Hoff 1960."""
    k = unit(torch.randn(1, 1, 1, 4).double()).expand(-1, -1, 2, -1)
    v = torch.randn(1, 1, 2, 3).double()
    ones = torch.ones(1, 1, 2, 1).double()
    x = RecurrenceInputs(q=k, k=k, v=v, log_decay=0 * ones, rate=ones)
    outputs, _ = delta_steps(x, torch.zeros(1, 1, 4, 3).double())
    assert_close(outputs, v, rtol=1e-5, atol=1e-5)


def test_the_cache_does_not_grow() -> None:
    """It holds the last inputs of the convolution and the states, in float32 at least."""
    config = GatedDeltaConfig(n_heads=4, n_key_heads=2, d_key=3, d_value=5)
    mixer = config.build(8, NoPosition(), True).bfloat16()
    cache = mixer.new_cache()
    for n in (9, 1):
        mixer(torch.randn(2, n, 8).bfloat16(), context(2, n), cache)
        inputs, states = (stage.state(torch.empty(2, 1, 8)) for stage in cache.stages)
        assert inputs.shape == (2, 3, 2 * 6 + 20)
        assert states.shape == (2, 12, 5)
        assert states.dtype == torch.float32


def test_a_decay_is_of_a_head_or_of_a_feature() -> None:
    head, channel = (
        GatedDeltaConfig(n_heads=2, decay=decay).build(8, NoPosition(), True)
        for decay in ("head", "channel")
    )
    assert (head.decay_proj.out_features, channel.decay_proj.out_features) == (2, 8)
    speeds, steps = channel.log_speed.exp(), nn.functional.softplus(channel.decay_bias)
    assert ((speeds >= 1) & (speeds <= 16)).all()
    assert ((steps > 0.0009) & (steps < 0.101)).all()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"n_heads": 0}, "n_heads"),
        ({"n_heads": 4, "n_key_heads": 3}, r"n_key_heads = 3 .* one of \[1, 2, 4\]"),
        ({"decay": "token"}, "decay"),
        ({"norm": "batchnorm"}, "batchnorm cannot"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        GatedDeltaConfig(**fields)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    match = r"d_model = 8 does not divide into n_heads = 3: n_heads must be one of \[1, 2, 4, 8\]"
    with pytest.raises(ValueError, match=match):
        DecoderConfig(d_model=8, attention=GatedDeltaConfig(n_heads=3))
    layer = LayerConfig(attention=GatedDeltaConfig(n_heads=3))
    with pytest.raises(ValueError, match="layer 1: d_model = 8"):
        DecoderConfig(d_model=8, n_layers=2, layer_pattern=(LayerConfig(), layer))
    with pytest.raises(ValueError, match="layer 0: position acts in attention"):
        DecoderConfig(
            d_model=8,
            layer_pattern=(
                LayerConfig(attention=GatedDeltaConfig(n_heads=2), position=RotaryConfig()),
            ),
        )
