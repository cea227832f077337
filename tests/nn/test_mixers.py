"""Mixers: one line of a recipe selects one; recurrences and convolutions keep texts apart."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tests.contracts import check_config, check_gradients, check_module, context, started
from tests.nn import test_convolution, test_recurrent
from tests.nn.slots import FEW, PADDING, SLOTS, TOKEN, TWO_ROWS, passing
from torch import nn
from torch.testing import assert_close

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.masks import Full
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.positions import NoPosition
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.parts import kind_of, members

ADAPTER = TypeAdapter[object](MixerConfig)
RECORDS = test_recurrent.RECORDS + test_convolution.RECORDS
NAMES = test_recurrent.NAMES + test_convolution.NAMES
EACH = pytest.mark.parametrize("config", RECORDS, ids=NAMES)
DIRECTIONS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])


def build(config: RecurrentConfig | ConvolutionConfig, *, causal: bool) -> nn.Module:
    return started(config.build(4, NoPosition(), causal)).double()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"n_heads": 2}, AttentionConfig(n_heads=2)),
        ({"kind": "attention"}, AttentionConfig()),
        ({"kind": "recurrent", "cell": "lstm"}, RecurrentConfig(cell="lstm")),
        ({"kind": "convolution", "kernel_size": [3, 5]}, ConvolutionConfig(kernel_size=(3, 5))),
    ],
)
def test_attention_unless_another_kind_is_written(
    written: dict[str, object], expected: object
) -> None:
    assert ADAPTER.validate_python(written) == expected
    assert ADAPTER.validate_json(ADAPTER.dump_json(expected)) == expected


def test_the_union_lists_each_mixer_once() -> None:
    kinds = [kind_of(one) for one in members(MixerConfig)]
    assert sorted(kinds) == ["attention", "convolution", "recurrent"]


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ValidationError, match="mamba"):
        DecoderConfig(attention={"kind": "mamba"})  # type: ignore[arg-type]


@EACH
@DIRECTIONS
def test_contract(config: RecurrentConfig | ConvolutionConfig, causal: bool) -> None:
    check_config(config, MixerConfig)
    x = torch.randn(2, 5, 4)
    valid = torch.tensor([[False, True, True, True, True], [True, True, True, False, False]])
    for ctx in (context(2, 5), context(2, 5, valid=valid)):
        check_module(
            lambda: config.build(4, NoPosition(), causal),
            lambda m, dtype, ctx=ctx: m(x.to(dtype), ctx),
        )
    assert config.build(4, NoPosition(), causal).pattern == Full()


@EACH
@given(data=st.data())
@settings(max_examples=20)
def test_no_token_looks_ahead(
    config: RecurrentConfig | ConvolutionConfig, data: st.DataObject
) -> None:
    """Exactly, in float32, and with padding or without."""
    t = data.draw(st.integers(1, 6))
    mixer, x = build(config, causal=True).float(), torch.randn(2, 7, 4)
    ctx = passing(torch.tensor(data.draw(st.just([[TOKEN] * 7] * 2) | TWO_ROWS)))
    changed = x.clone()
    changed[:, t:] = torch.randn(2, 7 - t, 4)
    assert torch.equal(mixer(x, ctx)[:, :t], mixer(changed, ctx)[:, :t])


@EACH
@FEW
@given(slots=SLOTS, cuts=st.sets(st.integers(1, 6)))
def test_a_cache_changes_nothing(
    config: RecurrentConfig | ConvolutionConfig, slots: list[list[int]], cuts: set[int]
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
    config: RecurrentConfig | ConvolutionConfig, slots: list[list[int]], pick: list[int], first: int
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
def test_what_stands_at_padding_is_never_read(
    config: RecurrentConfig | ConvolutionConfig, causal: bool
) -> None:
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
def test_gradients(config: RecurrentConfig | ConvolutionConfig, causal: bool) -> None:
    mixer = config.build(4, NoPosition(), causal)
    slots = torch.tensor([[0, 1, 1], [1, 2, 1]])
    for ctx in (context(2, 3), passing(slots)):
        check_gradients(mixer, lambda m, x, ctx=ctx: m(x, ctx), torch.randn(2, 3, 4), twice=True)


@EACH
@pytest.mark.parametrize("padded", [False, True])
def test_mixed_precision(config: RecurrentConfig | ConvolutionConfig, padded: bool) -> None:
    """Under autocast a state may come back narrower than the inputs; it serves all the same."""
    mixer = config.build(8, NoPosition(), True)
    x, cache = torch.randn(2, 4, 8), mixer.new_cache()
    slots = torch.full((2, 4), TOKEN)
    slots[0, 0] = PADDING if padded else TOKEN
    with torch.autocast("cpu", torch.bfloat16):
        parts = [mixer(x[:, n : n + 1], passing(slots, n, n + 1), cache) for n in range(4)]
    expected = mixer(x, passing(slots))
    assert_close(torch.cat(parts, 1).float(), expected, rtol=0, atol=2e-2)


@EACH
def test_no_tokens_at_all(config: RecurrentConfig | ConvolutionConfig) -> None:
    mixer, x = build(config, causal=True), torch.randn(2, 3, 4).double()
    cache = mixer.new_cache()
    parts = [
        mixer(x[:, start:end], context(2, end - start, past=start), cache)
        for start, end in ((0, 0), (0, 2), (2, 2), (2, 3))
    ]
    assert_close(torch.cat(parts, 1), mixer(x, context(2, 3)), rtol=0, atol=1e-12)
    assert mixer(x[:0], context(0, 3)).shape == (0, 3, 4)
