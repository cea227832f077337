"""Rotary frequencies under each scaling: which change, and by how much."""

import math
from typing import Any

import pytest

from addnorm.checking.definition.frequencies import rotary_frequencies, rotary_temperature
from addnorm.nn.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryConfig,
    YaRNScaling,
)

OWN = [10000 ** (-2 * i / 8) for i in range(4)]


def frequencies(scaling: Any = None, length: int = 1) -> list[float]:
    return rotary_frequencies(RotaryConfig(scaling=scaling), 8, length)


def test_without_scaling() -> None:
    assert frequencies() == pytest.approx([1, 0.1, 0.01, 0.001])
    assert rotary_temperature(None) == 1


def test_linear_slows_all() -> None:
    assert frequencies(LinearScaling(factor=4.0)) == pytest.approx([f / 4 for f in OWN])
    assert rotary_temperature(LinearScaling(factor=4.0)) == 1


def test_proportional_rotates_the_first_pairs_of_the_whole_head() -> None:
    assert frequencies(ProportionalScaling(share=0.5)) == pytest.approx([*OWN[:2], 0, 0])
    assert frequencies(ProportionalScaling(share=0.3)) == pytest.approx([OWN[0], 0, 0, 0])
    assert rotary_temperature(ProportionalScaling()) == 1


def test_ntk_keeps_the_fastest_and_slows_the_slowest_in_full() -> None:
    found = frequencies(NTKScaling(factor=4.0))
    assert found[0] == 1
    assert found[-1] == pytest.approx(OWN[-1] / 4)
    assert all(a < b for a, b in zip(found[1:], OWN[1:], strict=True))


def test_dynamic_begins_past_the_original_length() -> None:
    scaling = DynamicScaling(factor=2.0, original_max_len=10)
    assert frequencies(scaling, 10) == pytest.approx(OWN)
    # s = 2 · 20 / 10 - 1 = 3
    assert frequencies(scaling, 20) == pytest.approx(frequencies(NTKScaling(factor=3.0)))


def test_llama3_keeps_short_waves() -> None:
    turns = 8192 * OWN[3] / (2 * math.pi)  # the slowest pair turns 1.3 times
    kept = (turns - 1) / 3
    expected = pytest.approx([*OWN[:3], kept * OWN[3] + (1 - kept) * OWN[3] / 8])
    assert frequencies(Llama3Scaling(factor=8.0)) == expected
    assert frequencies(Llama3Scaling(factor=8.0, original_max_len=64)) == pytest.approx(
        [1, 0.1 / 8 + 0.1 * 7 / 8 * (6.4 / 2 / math.pi - 1) / 3, OWN[2] / 8, OWN[3] / 8]
    )


def test_longrope_divides_by_the_length() -> None:
    scaling = LongRoPEScaling(short=(1.0, 2.0, 4.0, 8.0), long=(3.0,), original_max_len=10)
    assert frequencies(scaling, 10) == pytest.approx([OWN[i] / 2**i for i in range(4)])
    assert frequencies(scaling, 11) == pytest.approx([f / 3 for f in OWN])
    assert rotary_temperature(LongRoPEScaling(**vars(scaling) | {"attention_factor": 1.1})) == 1.1


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    scaling = YaRNScaling(factor=4.0, original_max_len=2048)
    # Pairs 1.008 and 2.51 turn 32 times and once: between 1 and 3 the share falls from 1 to 0.
    shares = [1, 1, 0.5, 0]
    expected = [s * f + (1 - s) * f / 4 for s, f in zip(shares, OWN, strict=True)]
    assert frequencies(scaling) == pytest.approx(expected)
    assert rotary_temperature(scaling) == pytest.approx(0.1 * math.log(4) + 1)
    # Between 1.008 and 2.513, where the ends are not rounded.
    exact = YaRNScaling(factor=4.0, original_max_len=2048, truncate=False, attention_factor=0.5)
    ends = [4 * math.log(2048 / 2 / math.pi / turns) / math.log(10000) for turns in (32, 1)]
    share = 1 - (2 - ends[0]) / (ends[1] - ends[0])
    expected[2] = share * OWN[2] + (1 - share) * OWN[2] / 4
    assert frequencies(exact) == pytest.approx(expected)
    assert rotary_temperature(exact) == 0.5
