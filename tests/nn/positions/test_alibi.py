"""ALiBi: the paper's slopes, and biases of slope times distance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, context
from tests.nn.positions.places import EVERYTHING, at
from torch.testing import assert_close

from addnorm.nn.positions import ALiBi, ALiBiConfig
from addnorm.nn.positions.alibi import slopes


def test_slopes_of_the_paper() -> None:
    """Press et al. 2022, §3: 1/2 … 1/2⁸ for 8 heads, 1/2^0.5, 1/2 … 1/2⁸ for 16."""
    assert slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert slopes(16).tolist() == pytest.approx([2 ** (-h / 2) for h in range(1, 17)])
    assert slopes(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("n_heads", [3, 5, 6, 7, 12, 20])
def test_slopes_of_a_number_of_heads_that_is_not_a_power_of_two(n_heads: int) -> None:
    """Those of the power below, then the first, third, fifth … of the power above."""
    power = max(p for p in (1, 2, 4, 8, 16) if p <= n_heads)
    above = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1)]
    expected = [2 ** (-8 * h / power) for h in range(1, power + 1)] + above[::2]
    assert slopes(n_heads).tolist() == pytest.approx(expected[:n_heads])


@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_formula(causal: bool) -> None:
    """`-m_h (i - j)` for every key that a causal query sees, `-m_h |i - j|` for all."""
    alibi = ALiBiConfig().build(build_context(12, 3, causal=causal))
    rows = [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    q = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    got = alibi.score_bias(q, at(*rows, new=2))(EVERYTHING, EVERYTHING)
    assert got.dtype == torch.float64
    for b, row in enumerate(rows):
        for h in range(3):
            m = [2.0**-4, 2.0**-8, 2.0**-2][h]
            for i, p in enumerate(row[-2:]):
                for j, s in enumerate(row):
                    if s <= p or not causal:
                        assert got[b, h, i, j].item() == pytest.approx(-m * abs(p - s), rel=1e-14)


@pytest.mark.long
@given(p=st.integers(0, 2000), s=st.integers(0, 2000), shift=st.integers(0, 100_000))
def test_the_bias_depends_on_the_offset_alone(p: int, s: int, shift: int) -> None:
    """science.md §1: ALiBi and T5 biases likewise."""
    q = torch.zeros(1, 5, 2, 4)
    near, far = (
        ALiBi(5).score_bias(q, at([p + by, s + by]))(EVERYTHING, EVERYTHING) for by in (0, shift)
    )
    assert torch.equal(near, far)


def test_a_bfloat16_model_keeps_float32() -> None:
    alibi, q = ALiBi(4).to(torch.bfloat16), torch.zeros(1, 4, 2, 4, dtype=torch.bfloat16)
    bias = alibi.score_bias(q, at([0, 131_071]))(slice(1, 2), slice(0, 1))
    assert bias.dtype == torch.float32
    assert_close(bias.double().flatten(), -slopes(4) * 131_071, rtol=1e-6, atol=0)
    assert not [*alibi.buffers(), *alibi.parameters()]


def test_padding_has_no_effect() -> None:
    """The bias between real tokens is the same wherever the padding stands."""
    q = torch.zeros(2, 2, 5, 4)
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    bias = ALiBi(2).score_bias(q, context(2, 5, valid=valid))(EVERYTHING, EVERYTHING)
    assert torch.equal(bias[0, :, 2:, 2:], bias[1, :, :3, :3])


@pytest.mark.parity
def test_slopes_of_bloom() -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    for n_heads in range(1, 40):
        mask = torch.ones(1, 6)
        theirs = bloom.build_alibi_tensor(mask, n_heads, torch.float32)[:, 0, 1]
        assert_close(slopes(n_heads).float(), theirs)
