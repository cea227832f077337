"""Convolution against loops in float64, its receptive field, and independent texts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module, context, started
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.context import Context
from addnorm.nn.convolution import Convolution, ConvolutionConfig
from addnorm.nn.feedforward import ACTIVATIONS
from addnorm.nn.masks import Full
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

PADDING, TOKEN, BEGIN = 0, 1, 2
"""What a slot holds: nothing, a token of the text before it, or the first token of a text."""
ROW = st.lists(st.integers(PADDING, BEGIN), min_size=7, max_size=7)
ROW_OF_ONE = st.lists(st.integers(PADDING, TOKEN), min_size=7, max_size=7)
SLOTS = st.one_of(st.lists(row, min_size=1, max_size=3) for row in (ROW, ROW_OF_ONE))
FEW = settings(max_examples=12)


def build(config: ConvolutionConfig, *, causal: bool) -> Convolution:
    return started(config.build(4, NoPosition(), causal)).double()


def passing(slots: Tensor, start: int = 0, end: int | None = None) -> Context:
    """The pass over the slots from `start` to `end`, those before them being cached."""
    seen = slots[:, :end]
    valid, segments = seen != PADDING, (seen == BEGIN).cumsum(1) if (slots == BEGIN).any() else None
    return context(len(seen), seen.shape[1] - start, valid=valid, segments=segments, past=start)


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
def test_contract(config: ConvolutionConfig, causal: bool) -> None:
    check_config(config, ConvolutionConfig)
    x = torch.randn(2, 5, 4)
    valid = torch.tensor([[False, True, True, True, True], [True, True, True, False, False]])
    for ctx in (context(2, 5), context(2, 5, valid=valid)):
        check_module(
            lambda: config.build(4, NoPosition(), causal),
            lambda m, dtype, ctx=ctx: m(x.to(dtype), ctx),
        )
    assert config.build(4, NoPosition(), causal).pattern == Full()


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


@EACH
@given(data=st.data())
@settings(max_examples=20)
def test_no_token_looks_ahead(config: ConvolutionConfig, data: st.DataObject) -> None:
    """Exactly, in float32, and with padding or without."""
    t = data.draw(st.integers(1, 6))
    mixer, x = build(config, causal=True).float(), torch.randn(2, 7, 4)
    rows = st.just([[TOKEN] * 7] * 2) | st.lists(ROW, min_size=2, max_size=2)
    ctx = passing(torch.tensor(data.draw(rows)))
    changed = x.clone()
    changed[:, t:] = torch.randn(2, 7 - t, 4)
    assert torch.equal(mixer(x, ctx)[:, :t], mixer(changed, ctx)[:, :t])


@EACH
@FEW
@given(slots=SLOTS, cuts=st.sets(st.integers(1, 6)))
def test_a_cache_changes_nothing(
    config: ConvolutionConfig, slots: list[list[int]], cuts: set[int]
) -> None:
    """In whatever parts the tokens come, padding and new texts among them."""
    mixer, held = build(config, causal=True), torch.tensor(slots)
    x, cache = torch.randn(*held.shape, 4).double(), mixer.new_cache()
    ends = [*sorted(cuts), 7]
    parts = [
        mixer(x[:, start:end], passing(held, start, end), cache)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    assert_close(torch.cat(parts, 1), mixer(x, passing(held)), rtol=0, atol=1e-12)


@EACH
@FEW
@given(
    slots=SLOTS, pick=st.lists(st.integers(0, 2), min_size=1, max_size=4), first=st.integers(0, 6)
)
def test_select_follows_the_rows(
    config: ConvolutionConfig, slots: list[list[int]], pick: list[int], first: int
) -> None:
    mixer, held = build(config, causal=True), torch.tensor(slots)
    x, cache = torch.randn(*held.shape, 4).double(), mixer.new_cache()
    rows = torch.tensor(pick) % len(held)
    if first:
        mixer(x[:, :first], passing(held, 0, first), cache)
    cache.select(rows)
    y = mixer(x[rows, first:], passing(held[rows], first), cache)
    assert_close(y, mixer(x, passing(held))[rows, first:], rtol=0, atol=1e-12)


@EACH
@DIRECTIONS
def test_what_stands_at_padding_is_never_read(config: ConvolutionConfig, causal: bool) -> None:
    mixer, x = build(config, causal=causal), torch.randn(2, 5, 4).double()
    slots = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    y, real = mixer(x, passing(slots)), slots != PADDING
    foul = torch.where(real[..., None], x, torch.nan).requires_grad_()
    again = mixer(foul, passing(slots))
    assert torch.equal(again, y)
    assert torch.equal(y[~real], torch.zeros(8, 4).double())
    again.sum().backward()
    assert torch.equal(foul.grad[~real], torch.zeros(8, 4).double())
    assert all(p.grad.isfinite().all() for p in mixer.parameters())
    nothing = passing(torch.zeros_like(slots))
    assert torch.equal(mixer(foul, nothing), torch.zeros_like(x))


@EACH
@DIRECTIONS
def test_gradients(config: ConvolutionConfig, causal: bool) -> None:
    mixer = config.build(4, NoPosition(), causal)
    slots = torch.tensor([[0, 1, 1], [1, 2, 1]])
    for ctx in (context(2, 3), passing(slots)):
        check_gradients(mixer, lambda m, x, ctx=ctx: m(x, ctx), torch.randn(2, 3, 4), twice=True)


@pytest.mark.parametrize("padded", [False, True])
def test_mixed_precision(padded: bool) -> None:
    mixer = ConvolutionConfig().build(8, NoPosition(), True)
    x, cache = torch.randn(2, 4, 8), mixer.new_cache()
    slots = torch.full((2, 4), TOKEN)
    slots[0, 0] = PADDING if padded else TOKEN
    with torch.autocast("cpu", torch.bfloat16):
        parts = [mixer(x[:, n : n + 1], passing(slots, n, n + 1), cache) for n in range(4)]
    expected = mixer(x, passing(slots))
    assert_close(torch.cat(parts, 1).float(), expected, rtol=0, atol=2e-2)


@EACH
def test_no_tokens_at_all(config: ConvolutionConfig) -> None:
    mixer, x = build(config, causal=True), torch.randn(2, 3, 4).double()
    cache = mixer.new_cache()
    parts = [
        mixer(x[:, start:end], context(2, end - start, past=start), cache)
        for start, end in ((0, 0), (0, 2), (2, 2), (2, 3))
    ]
    assert_close(torch.cat(parts, 1), mixer(x, context(2, 3)), rtol=0, atol=1e-12)
    assert mixer(x[:0], context(0, 3)).shape == (0, 3, 4)


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
