"""The definition of rotary frequencies under every scaling, pair by pair."""

import math
from typing import Any


def rotary_frequencies(config: Any, width: int, length: int) -> list[float]:
    """By how many radians a place turns each of the `width / 2` pairs, in a text of `length`."""
    return [_frequency(config, width, i, length) for i in range(width // 2)]


def _frequency(config: Any, width: int, i: int, length: int) -> float:
    theta, scaling = config.theta, config.scaling
    plain = theta ** (-2 * i / width)
    match scaling.kind if scaling else None:
        case None:
            return plain
        case "linear":  # Chen et al. 2023, eq. 4
            return plain / scaling.factor
        case "ntk":
            return ntk(theta, width, i, scaling.factor)
        case "dynamic":  # Peng et al. 2024, §3.3
            stretch = max(length, scaling.original_max_len) / scaling.original_max_len
            return ntk(theta, width, i, scaling.factor * stretch - (scaling.factor - 1))
        case "yarn":
            kept = yarn_kept(scaling, theta, width, i)
            return kept * plain + (1 - kept) * plain / scaling.factor
        case "llama3":
            kept = llama3_kept(scaling, plain)
            return kept * plain + (1 - kept) * plain / scaling.factor
        case kind:
            raise NotImplementedError(kind)


def ntk(theta: float, width: int, i: int, factor: float) -> float:
    """The frequency with base `θ s^(d/(d-2))` (bloc97 2023; Peng et al. 2024, §3.1)."""
    # A single pair has no slower one to be interpolated.
    return (theta * factor ** (width / (width - 2))) ** (-2 * i / width) if width > 2 else 1.0


def yarn_kept(scaling: Any, theta: float, width: int, i: int) -> float:
    """How much of its frequency pair `i` keeps (Peng et al. 2024, §3.2, as in their code).

    Pairs slower than `beta_slow` turns in the original length are interpolated, those faster than
    `beta_fast` are kept, and between them the share falls linearly along the pairs.
    """

    def pair(turns: float) -> float:
        wavelength = scaling.original_max_len / turns
        return width / 2 * math.log(wavelength / (2 * math.pi)) / math.log(theta)

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), width - 1)
    return 1 - min(max((i - low) / (high - low if high > low else 0.001), 0), 1)


def llama3_kept(scaling: Any, plain: float) -> float:
    """How much of its frequency a pair keeps (Grattafiori et al. 2024, and the Llama 3.1 code)."""
    wavelength = 2 * math.pi / plain
    if wavelength < scaling.original_max_len / scaling.high_freq_factor:
        return 1.0
    if wavelength > scaling.original_max_len / scaling.low_freq_factor:
        return 0.0
    turns = scaling.original_max_len / wavelength
    return (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)


def rotary_temperature(scaling: Any) -> float:
    """What rotated queries and keys are multiplied by: `0.1 ln(s) + 1` in YaRN (§3.4)."""
    return 0.1 * math.log(scaling.factor) + 1 if scaling and scaling.kind == "yarn" else 1.0
