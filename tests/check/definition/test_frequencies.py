"""Rotary frequencies under each scaling: what stays, what slows down, and by how much."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.check.definition.frequencies import rotary_frequencies, rotary_temperature

OWN = [10000 ** (-2 * i / 8) for i in range(4)]


def frequencies(length: int = 1, **scaling: Any) -> list[float]:
    scaled = SimpleNamespace(**scaling) if scaling else None
    return rotary_frequencies(SimpleNamespace(theta=10000.0, scaling=scaled), 8, length)


def test_without_scaling() -> None:
    assert frequencies() == pytest.approx([1, 0.1, 0.01, 0.001])


def test_linear_slows_all() -> None:
    assert frequencies(kind="linear", factor=4.0) == pytest.approx([f / 4 for f in OWN])


def test_ntk_keeps_the_fastest_and_slows_the_slowest_in_full() -> None:
    found = frequencies(kind="ntk", factor=4.0)
    assert found[0] == 1
    assert found[-1] == pytest.approx(OWN[-1] / 4)
    assert all(a < b for a, b in zip(found[1:], OWN[1:], strict=True))


def test_dynamic_begins_past_the_original_length() -> None:
    scaling = {"kind": "dynamic", "factor": 2.0, "original_max_len": 10}
    assert frequencies(10, **scaling) == pytest.approx(OWN)
    # s = 2 · 20 / 10 - 1 = 3
    assert frequencies(20, **scaling) == pytest.approx(frequencies(kind="ntk", factor=3.0))


def test_llama3_keeps_short_waves() -> None:
    scaling = {"kind": "llama3", "factor": 8.0, "original_max_len": 8192}
    found = frequencies(**scaling, low_freq_factor=1.0, high_freq_factor=4.0)
    turns = 8192 * OWN[3] / (2 * math.pi)  # the slowest pair turns 1.3 times
    kept = (turns - 1) / 3
    assert found == pytest.approx([*OWN[:3], kept * OWN[3] + (1 - kept) * OWN[3] / 8])
    shorter = frequencies(
        **{**scaling, "original_max_len": 64}, low_freq_factor=1, high_freq_factor=4
    )
    assert shorter == pytest.approx(
        [1, 0.1 / 8 + 0.1 * 7 / 8 * (6.4 / 2 / math.pi - 1) / 3, OWN[2] / 8, OWN[3] / 8]
    )


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    scaling = {"kind": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
    found = frequencies(**scaling, original_max_len=2048)
    # Pairs 1.008 and 2.51 turn 32 times and once: between 1 and 3 the share falls from 1 to 0.
    shares = [1, 1, 0.5, 0]
    expected = [s * f + (1 - s) * f / 4 for s, f in zip(shares, OWN, strict=True)]
    assert found == pytest.approx(expected)
    scaled = SimpleNamespace(**scaling)
    assert rotary_temperature(scaled) == pytest.approx(0.1 * math.log(4) + 1)
    assert rotary_temperature(None) == 1
