"""The definitions of rotary frequency scalings, `f(scaling, theta, width, i, length)`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from addnorm.checking.definition.definitions import Definitions
from addnorm.nn.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    YaRNScaling,
)

Frequency = Callable[[Any, float, int, int, int], float]


@dataclass(frozen=True)
class ScalingDefinition:
    """The `frequency` of pair `i`, and the factor that multiplies rotated queries and keys."""

    frequency: Frequency
    temperature: Callable[[Any], float] = lambda scaling: 1.0


def rotary_frequencies(config: Any, width: int, length: int) -> list[float]:
    """The frequencies, in radians per position, of the `width / 2` pairs in a text of `length`."""
    theta, scaling = config.theta, config.scaling
    frequency = plain if scaling is None else SCALINGS.of(scaling).frequency
    return [frequency(scaling, theta, width, i, length) for i in range(width // 2)]


def plain(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """`θ^(-2i/width)` (Su et al. 2021, §3.2.2)."""
    return theta ** (-2 * i / width)


def linear(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Chen et al. 2023, eq. 4."""
    return plain(scaling, theta, width, i, length) / scaling.factor


def dynamic(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Peng et al. 2024, §3.3."""
    stretch = max(length, scaling.original_max_len) / scaling.original_max_len
    return ntk(theta, width, i, scaling.factor * stretch - (scaling.factor - 1))


def yarn(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Peng et al. 2024, §3.2."""
    ramp, own = yarn_kept(scaling, theta, width, i), plain(scaling, theta, width, i, length)
    return ramp * own + (1 - ramp) * own / scaling.factor


def llama3(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Grattafiori et al. 2024, and the Llama 3.1 code."""
    own = plain(scaling, theta, width, i, length)
    ramp = llama3_kept(scaling, own)
    return ramp * own + (1 - ramp) * own / scaling.factor


def longrope(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Ding et al. 2024, §3, with one set of divisors for longer texts as in Phi-3."""
    divisors = scaling.long if length > scaling.original_max_len else scaling.short
    return plain(scaling, theta, width, i, length) / divisors[i if len(divisors) > 1 else 0]


def proportional(scaling: Any, theta: float, width: int, i: int, length: int) -> float:
    """Gemma 4: only the first pairs of the whole head are rotated."""
    rotated = math.floor(scaling.share * width / 2)
    return plain(scaling, theta, width, i, length) if i < rotated else 0.0


def ntk(theta: float, width: int, i: int, factor: float) -> float:
    """The frequency with base `θ s^(d/(d-2))` (bloc97 2023; Peng et al. 2024, §3.1)."""
    # A single pair is never interpolated.
    return (theta * factor ** (width / (width - 2))) ** (-2 * i / width) if width > 2 else 1.0


def yarn_kept(scaling: Any, theta: float, width: int, i: int) -> float:
    """The interpolation ramp of pair `i`, 1 = unchanged (Peng et al. 2024, §3.2, as in their code).

    Pairs with fewer than `beta_slow` rotations in the original length are fully interpolated, those
    with more than `beta_fast` are unchanged, with a linear ramp over the pairs in between.
    """

    def pair(turns: float) -> float:
        wavelength = scaling.original_max_len / turns
        return width / 2 * math.log(wavelength / (2 * math.pi)) / math.log(theta)

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return 1 - min(max((i - low) / (high - low if high != low else 0.001), 0), 1)


def yarn_temperature(scaling: Any) -> float:
    """`√(1/t) = 0.1 ln(s) + 1` unless another is given (Peng et al. 2024, §3.4)."""
    given = scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1 if given is None else given


def llama3_kept(scaling: Any, plain: float) -> float:
    """The interpolation ramp of a pair, 1 = unchanged (Grattafiori et al. 2024; Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    if wavelength < scaling.original_max_len / scaling.high_freq_factor:
        return 1.0
    if wavelength > scaling.original_max_len / scaling.low_freq_factor:
        return 0.0
    turns = scaling.original_max_len / wavelength
    return (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)


SCALINGS = Definitions[ScalingDefinition](
    "scaling",
    "frequencies.py",
    {
        LinearScaling: ScalingDefinition(linear),
        NTKScaling: ScalingDefinition(lambda s, theta, width, i, _: ntk(theta, width, i, s.factor)),
        DynamicScaling: ScalingDefinition(dynamic),
        YaRNScaling: ScalingDefinition(yarn, yarn_temperature),
        Llama3Scaling: ScalingDefinition(llama3),
        LongRoPEScaling: ScalingDefinition(longrope, lambda s: s.attention_factor),
        ProportionalScaling: ScalingDefinition(proportional),
    },
)


def rotary_temperature(scaling: Any) -> float:
    """The factor that multiplies rotated queries and keys."""
    return 1.0 if scaling is None else SCALINGS.of(scaling).temperature(scaling)
