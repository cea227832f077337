"""Rotary positions: the paper's complex product, both layouts, and partial rotation."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, context
from tests.nn.positions.places import at, scores
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.positions import (
    DynamicRotary,
    DynamicScaling,
    LinearScaling,
    Position,
    Rotary,
    RotaryConfig,
    YaRNScaling,
)
from addnorm.nn.positions.rotary import LAYOUTS, Layout, text_lengths
from addnorm.nn.positions.sinusoidal import frequencies

PLAIN = RotaryConfig()
DYNAMIC = DynamicScaling(factor=2.0, original_max_len=4)


def pairs(width: int, layout: Layout) -> list[tuple[int, int]]:
    half = width // 2
    return [(i, i + half) if layout == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def paper(x: Tensor, positions: list[int], layout: Layout, width: int, theta: float) -> Tensor:
    """`(a + i b) · exp(i p θ^(-2j/width))` for each pair of the first `width`, in complex128."""
    out = x.double().clone()
    for s, p in enumerate(positions):
        for j, (first, second) in enumerate(pairs(width, layout)):
            angle = torch.tensor(p * theta ** (-2 * j / width), dtype=torch.float64)
            turned = torch.complex(x[:, :, s, first].double(), x[:, :, s, second].double())
            turned = turned * torch.complex(angle.cos(), angle.sin())
            out[:, :, s, first], out[:, :, s, second] = turned.real, turned.imag
    return out


def built(d_head: int, config: RotaryConfig = PLAIN) -> Position:
    return config.build(build_context(2 * d_head, 2))


def test_every_layout_is_in_the_table() -> None:
    assert set(get_args(Layout)) == set(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(
    ("d_head", "fraction", "width"), [(2, 1.0, 2), (6, 1.0, 6), (10, 0.4, 4), (64, 1.0, 64)]
)
def test_equals_the_formula(
    d_head: int, fraction: float, width: int, theta: float, layout: Layout
) -> None:
    positions = [0, 1, 5, 1000]
    q, k = torch.randn(1, 4, 4, d_head), torch.randn(1, 2, 4, d_head)
    config = RotaryConfig(theta=theta, layout=layout, fraction=fraction)
    got = built(d_head, config).rotate(q, k, at(positions))
    for turned, x in zip(got, (q, k), strict=True):
        expected = paper(x, positions, layout, width, theta)
        assert_close(turned.double(), expected, rtol=0, atol=1e-6)
        assert torch.equal(turned[..., width:], x[..., width:])


@given(
    layout=st.sampled_from([*LAYOUTS]),
    fraction=st.sampled_from([0.5, 1.0]),
    p=st.integers(0, 2000),
    s=st.integers(0, 2000),
    shift=st.integers(0, 100_000),
)
def test_scores_depend_on_the_offset_alone(
    layout: Layout, fraction: float, p: int, s: int, shift: int
) -> None:
    """science.md §1: `<R_p q, R_s k>` depends on `p - s` alone."""
    rotary = built(16, RotaryConfig(layout=layout, fraction=fraction))
    q, k = torch.randn(2, 1, 2, 2, 16, dtype=torch.float64)
    near, far = (scores(rotary, q, k, at([p + by, s + by])) for by in (0, shift))
    assert_close(far, near, rtol=0, atol=1e-8)


def test_position_zero_and_lengths_stay() -> None:
    q = torch.randn(1, 2, 3, 8)
    turned, _ = built(8).rotate(q, q, at([0, 7, 99]))
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert_close(turned.norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_far_positions_in_a_bfloat16_model(layout: Layout) -> None:
    """Issue 3 and science.md §1: at position 131,071 within 1e-2 of float64."""
    rotary = built(64, RotaryConfig(layout=layout)).to(torch.bfloat16)
    q = torch.randn(1, 1, 1, 64).clamp(-1, 1).bfloat16()
    turned, _ = rotary.rotate(q, q, at([131_071]))
    assert turned.dtype == torch.bfloat16
    assert_close(turned.double(), paper(q, [131_071], layout, 64, 10000.0), rtol=0, atol=1e-2)
    assert not [*rotary.buffers(), *rotary.parameters()]


@pytest.mark.parametrize("scaling", [None, YaRNScaling(factor=4, original_max_len=8), DYNAMIC])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_type_stays(
    dtype: torch.dtype, layout: Layout, scaling: YaRNScaling | DynamicScaling | None
) -> None:
    q = torch.randn(2, 2, 6, 4).to(dtype)
    rotary = built(4, RotaryConfig(layout=layout, scaling=scaling)).to(dtype)
    q, k = rotary.rotate_all(*rotary.rotate(q, q, context(2, 6)), context(2, 6))
    assert q.dtype == k.dtype == dtype


@pytest.mark.parametrize("scaling", [None, DYNAMIC])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout: Layout, scaling: DynamicScaling | None) -> None:
    rotary = built(6, RotaryConfig(layout=layout, fraction=2 / 3, scaling=scaling))
    q = torch.randn(1, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: scores(rotary, q, q * 2, context(1, 3)), q)
    assert torch.autograd.gradgradcheck(lambda q: scores(rotary, q, q * 2, context(1, 3)), q)


def test_keys_may_be_more_than_queries() -> None:
    """As with Transformer-XL's memory: the queries are the last of the places."""
    rotary, ctx = built(8), at([3, 4, 5, 6, 7])
    q, k = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 4, 8)
    turned_q, turned_k = rotary.rotate(q, k, ctx)
    assert_close(turned_q, rotary.rotate(q, q, at([6, 7]))[0])
    assert_close(turned_k, rotary.rotate(k, k, at([4, 5, 6, 7]))[1])


def test_yarn_multiplies_the_rotated_features_alone() -> None:
    scaling = YaRNScaling(factor=math.e**10, original_max_len=64)  # √(1/t) = 2
    rotary = built(8, RotaryConfig(scaling=scaling, fraction=0.5))
    assert isinstance(rotary, Rotary)
    q = torch.randn(1, 2, 1, 8)
    assert_close(rotary.rotate(q, q, at([0]))[0], torch.cat((2 * q[..., :4], q[..., 4:]), dim=-1))


def test_dynamic_is_plain_up_to_the_length_of_training() -> None:
    dynamic = built(8, RotaryConfig(scaling=DYNAMIC))
    q = torch.randn(1, 2, 4, 8)
    assert isinstance(dynamic, DynamicRotary)
    assert torch.equal(dynamic.rotate(q, q, context(1, 4))[0], q)
    assert_close(dynamic.rotate_all(q, q, context(1, 4)), built(8).rotate(q, q, context(1, 4)))


def test_dynamic_turns_by_the_length_of_each_row() -> None:
    """Row 0 is 7 long, s = 2 · 7/4 - 1 = 2.5; row 1 is 3 long and padded: its base is its own."""
    dynamic = built(8, RotaryConfig(scaling=DYNAMIC))
    q = torch.randn(2, 2, 7, 8, dtype=torch.float64)
    valid = torch.ones(2, 7).bool()
    valid[1, :4] = False
    turned, _ = dynamic.rotate_all(q, q, context(2, 7, valid=valid))
    base = 10000 * 2.5 ** (8 / 6)
    assert_close(turned[:1], paper(q[:1], [*range(7)], "half", 8, base), rtol=0, atol=1e-9)
    short = paper(q[1:, :, 4:], [0, 1, 2], "half", 8, 10000.0)
    assert_close(turned[1:, :, 4:], short, rtol=0, atol=1e-9)


def test_dynamic_scores_of_a_new_token_are_those_of_the_whole() -> None:
    """Whether the keys came from a cache or with the token: the same length, the same scores."""
    dynamic = built(8, RotaryConfig(scaling=DYNAMIC))
    q = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    whole = scores(dynamic, q, q, at([*range(9)]))
    last = scores(dynamic, q[:, :, -2:], q, at([*range(9)], new=2))
    assert_close(last, whole[:, :, -2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("d_head", "fraction", "message"),
    [
        (5, 1.0, r"d_head = 5 turns 5 .* even; the nearest is fraction = 0\.8 turns 4"),
        (16, 0.3, r"fraction = 0\.3 of d_head = 16 turns 4\.8 .* fraction = 0\.25 turns 4"),
        (8, 0.1, r"turns 0\.8 .* fraction = 0\.25 turns 2"),
        (7, 1.0, r"turns 7 .* turns 6"),
        (1, 1.0, r"d_head = 1 turns 1 .* the nearest is d_head = 2"),
    ],
)
def test_what_makes_no_pairs_is_refused(d_head: int, fraction: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(d_head, RotaryConfig(fraction=fraction))


@pytest.mark.parametrize(
    "wrong", [{"theta": 1.0}, {"theta": -1.0}, {"fraction": 0.0}, {"fraction": 1.1}]
)
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RotaryConfig(**wrong)


def test_a_scaling_is_read_by_its_kind() -> None:
    linear = RotaryConfig(scaling=LinearScaling(factor=4.0))
    rotary = built(8, linear)
    assert isinstance(rotary, Rotary)
    assert_close(rotary.frequencies, frequencies(8) / 4)


@pytest.mark.parity
def test_equals_llama_and_gptj() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64)
    angles = torch.arange(5).double()[:, None] * frequencies(8)
    cos, sin = angles.cos(), angles.sin()
    theirs = llama.apply_rotary_pos_emb(
        q, k, torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    )
    assert_close(built(8).rotate(q, k, context(1, 5)), theirs)
    ours = built(8, RotaryConfig(layout="interleaved")).rotate(q, k, context(1, 5))
    for turned, x in zip(ours, (q, k), strict=True):
        expected = gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin[None], cos[None])
        assert_close(turned, expected.transpose(1, 2))


def test_texts_packed_in_a_row_have_lengths_of_their_own() -> None:
    positions = torch.tensor([[0, 0, 1, 2, 0, 1, 0, 0], [0, 0, 0, 0, 1, 2, 3, 4]])
    lengths = [[1, 3, 3, 3, 2, 2, 1, 1], [1, 1, 1, 5, 5, 5, 5, 5]]
    assert text_lengths(positions).tolist() == lengths
    places = torch.tensor([3, 0, 7, 5, 6, 1, 2, 4])
    scattered = text_lengths(positions[:, places], None, places.argsort())
    assert torch.equal(scattered, torch.tensor(lengths)[:, places])
