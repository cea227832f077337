"""Convolution against loops in float64, its receptive field, and independent texts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import context, started
from tests.nn.slots import BEGIN, FEW, PADDING, SLOTS, TOKEN, passing
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.convolution import Convolution, ConvolutionConfig
from addnorm.nn.feedforward import ACTIVATIONS
from addnorm.nn.positions import NoPosition

RECORDS = [
    ConvolutionConfig(),
    ConvolutionConfig(kernel_size=4, activation="gelu"),
    ConvolutionConfig(kernel_size=(3, 4, 5), activation="sigmoid"),
    ConvolutionConfig(kernel_size=1, activation="silu", bias=False),
]
NAMES = ["three", "even", "several", "single"]
DIRECTIONS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "centred"])
EACH = pytest.mark.parametrize("config", RECORDS, ids=NAMES)


def build(config: ConvolutionConfig, *, causal: bool) -> Convolution:
    return started(config.build(4, NoPosition(), causal)).double()


def offsets(k: int, causal: bool) -> range:
    """Where the taps of a kernel of size `k` stand."""
    return range(-k + 1, 1) if causal else range(-(k // 2), (k + 1) // 2)


def paper(mixer: Convolution, config: ConvolutionConfig, x: Tensor, slots: Tensor) -> Tensor:
    """Every tap of every token, looked up by its place in its own text."""
    begins = (slots == BEGIN).cumsum(1).tolist()
    found = dict[tuple[int, int], list[int]]()  # the slots of every text
    for row, slot in (slots != PADDING).nonzero().tolist():
        found.setdefault((row, begins[row][slot]), []).append(slot)
    y = torch.zeros_like(x)
    for (row, _), text in found.items():
        for place, slot in enumerate(text):
            maps = []
            for conv in mixer.conv:
                z = torch.zeros(4).double() if conv.bias is None else conv.bias
                for tap, o in enumerate(offsets(conv.kernel_size[0], mixer.causal)):
                    if 0 <= place + o < len(text):
                        z = z + conv.weight[:, :, tap] @ x[row, text[place + o]]
                maps.append(z)
            y[row, slot] = mixer.out_proj(ACTIVATIONS[config.activation](torch.cat(maps)))
    return y


@EACH
@DIRECTIONS
@FEW
@given(slots=SLOTS | st.just([[TOKEN] * 7] * 2))
def test_every_tap_stays_in_its_text(
    config: ConvolutionConfig, causal: bool, slots: list[list[int]]
) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    mixer, held = build(config, causal=causal), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    expected = paper(mixer, config, x, held)
    assert_close(mixer(x, passing(held)), expected, rtol=0, atol=1e-12)
    if (held == TOKEN).all():
        assert_close(mixer(x, context(*held.shape)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_torch_pads_alike(size: int) -> None:
    config = ConvolutionConfig(kernel_size=size)
    mixer, x = build(config, causal=False), torch.randn(3, 6, 4).double()
    padded = nn.Conv1d(4, 4, size, padding="same").double()
    padded.load_state_dict(mixer.conv[0].state_dict())
    expected = mixer.out_proj(padded(x.mT).mT.relu())
    assert_close(mixer(x, context(3, 6)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "size", "reach"), [(1, 3, 3), (2, 3, 5), (3, 3, 7), (2, 4, 7), (3, 2, 4), (2, 1, 1)]
)
def test_reach(layers: int, size: int, reach: int) -> None:
    """`L (k - 1) + 1`: three layers of width 3 reach 7 tokens, and not one more."""
    assert reach == layers * (size - 1) + 1
    config = ConvolutionConfig(kernel_size=size, activation="gelu")
    x = torch.randn(1, 10, 4).double().requires_grad_()
    y = x
    for _ in range(layers):
        y = build(config, causal=True)(y, context(1, 10))
    y[0, -1].sum().backward()
    seen = (x.grad[0].abs().sum(-1) > 0).nonzero().flatten()
    assert seen.tolist() == list(range(10 - reach, 10))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [4]), (2, [3, 4]), (3, [3, 4, 5]), (4, [2, 3, 4, 5]), (5, [2, 3, 4, 5, 6])],
)
def test_an_even_kernel_has_one_more_tap_on_the_left(size: int, expected: list[int]) -> None:
    config = ConvolutionConfig(kernel_size=size, activation="gelu")
    x = torch.randn(1, 9, 4).double().requires_grad_()
    build(config, causal=False)(x, context(1, 9))[0, 4].sum().backward()
    assert (x.grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist() == expected


def test_a_cache_needs_taps_on_the_left_alone() -> None:
    mixer = ConvolutionConfig().build(4, NoPosition(), False)
    with pytest.raises(ValueError, match="looks ahead"):
        mixer(torch.randn(1, 2, 4), context(1, 2), mixer.new_cache())


@pytest.mark.parametrize("causal", [True, False])
def test_sizes(causal: bool) -> None:
    mixer = ConvolutionConfig(kernel_size=(3, 4, 5)).build(8, NoPosition(), causal)
    assert [tuple(conv.weight.shape) for conv in mixer.conv] == [(8, 8, 3), (8, 8, 4), (8, 8, 5)]
    assert mixer.out_proj.in_features == 24
    assert mixer.new_cache().slots == (4 if causal else 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kernel_size", 0), ("kernel_size", ()), ("kernel_size", (3, 0)), ("activation", "rleu")],
)
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        ConvolutionConfig(**{field: value})
