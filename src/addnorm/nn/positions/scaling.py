"""Scaling of rotary frequencies, which extends the context length of a trained model.

Every scaling lowers the frequency of some pairs, so that distant positions rotate them no further
than the positions seen in training. Frequencies are float64, radians per position, fastest first.
"""

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from addnorm.config import WORD, config
from addnorm.nn.positions.sinusoidal import frequencies, in_float64

Frequencies = Float[Tensor, " half"]
Factor = Annotated[float, Field(ge=1.0)]


@config
class LinearScaling:
    """Position interpolation: `ω_i / s` (Chen et al. 2023, eq. 4)."""

    kind: Literal["linear"] = "linear"
    factor: Factor
    """s, how many times longer texts may be."""

    temperature: ClassVar[float] = 1.0

    def frequencies(self, width: int, theta: float) -> Frequencies:
        return frequencies(width, theta) / self.factor


@config
class NTKScaling:
    """NTK-aware: the base becomes `θ s^(d/(d-2))`, so `ω_0` stays and the slowest becomes `ω / s`.

    From bloc97's note on "NTK-Aware Scaled RoPE" (2023); Peng et al. 2024 (YaRN), §3.1.
    """

    kind: Literal["ntk"] = "ntk"
    factor: Factor
    """s, how many times longer texts may be."""

    temperature: ClassVar[float] = 1.0

    def frequencies(self, width: int, theta: float) -> Frequencies:
        return frequencies(width, theta) * self.factor ** -_ramp(width)


@config
class DynamicScaling:
    """NTK-aware by `s(l) = s l / L - (s - 1)`, where `l` is the current length and at least `L`.

    Nothing changes up to the `original_max_len` L of the training (Peng et al. 2024, §3.3, with
    `s(l)` as in Hugging Face transformers).
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Factor
    """s, how many times longer texts may be."""
    original_max_len: PositiveInt
    """L, the length in tokens that the model was trained on."""

    temperature: ClassVar[float] = 1.0

    def constants(self, width: int, theta: float) -> Float[Tensor, "2 half"]:
        """The frequencies of the training, and how much of the stretch each pair takes."""
        return torch.stack((frequencies(width, theta), _ramp(width)))

    def frequencies(
        self, constants: Float[Tensor, "2 half"], length: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch half"]:
        """The frequencies for each length."""
        longer = in_float64(length).clamp(min=self.original_max_len) / self.original_max_len
        stretch = self.factor * longer - (self.factor - 1)
        plain, ramp = constants.to(stretch.device)
        return plain * stretch[..., None] ** -ramp


@config
class YaRNScaling:
    """`γ_i ω_i + (1 - γ_i) ω_i / s`, where γ falls from 1 to 0 along the pairs.

    Pairs that turn more than `beta_fast` times in `original_max_len` positions keep their
    frequency, those that turn less than `beta_slow` times are interpolated (Peng et al. 2024,
    §3.2). Cosines and sines are multiplied by `√(1/t) = 0.1 ln(s) + 1` (§3.4), which divides the
    scores by the temperature `t`.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    """s, how many times longer texts may be."""
    original_max_len: PositiveInt
    """The length in tokens that the model was trained on."""
    beta_fast: PositiveFloat = 32.0
    """Turns over the original length above which a pair keeps its frequency."""
    beta_slow: PositiveFloat = 1.0
    """Turns over the original length below which a pair is slowed in full."""
    truncate: bool = True
    """Whether the ends of γ's fall are rounded outwards to whole pairs, as in the authors' code."""
    attention_factor: PositiveFloat | None = None
    """The factor of cosines and sines; by default 0.1 ln(s) + 1."""

    def __post_init__(self) -> None:
        _ordered("beta_slow", self.beta_slow, "beta_fast", self.beta_fast)

    def frequencies(self, width: int, theta: float) -> Frequencies:
        first = self._pair(self.beta_fast, width, theta)
        last = self._pair(self.beta_slow, width, theta)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)  # kept among the features
        pairs = torch.arange(width // 2, dtype=torch.float64, device="cpu")
        # Where no pair turns so often, `last` lies before the first pair, and all keep theirs.
        gamma = 1 - ((pairs - first) / (last - first or 0.001)).clamp(0, 1)
        return _blend(frequencies(width, theta), gamma, self.factor)

    def _pair(self, turns: float, width: int, theta: float) -> float:
        """The (fractional) index of the pair that makes `turns` rotations in `original_max_len`
        positions.
        """
        return width * math.log(self.original_max_len / (turns * 2 * math.pi)) / 2 / math.log(theta)

    @property
    def temperature(self) -> float:
        factor = self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if factor is None else factor


@config
class Llama3Scaling:
    """`γ_i ω_i + (1 - γ_i) ω_i / s`, where γ rises with the turns `n_i = L ω_i / 2π` of the pair.

    `γ = (n - low) / (high - low)` within [0, 1]: what turns less than `low_freq_factor` times in
    `original_max_len` positions is slowed in full (Llama 3.1 model code; Grattafiori et al. 2024).
    """

    kind: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    """s, by how much the slowest pairs are slowed."""
    low_freq_factor: PositiveFloat = 1.0
    """Turns over the original length below which a pair is slowed in full."""
    high_freq_factor: PositiveFloat = 4.0
    """Turns over the original length above which a pair keeps its frequency."""
    original_max_len: PositiveInt = 8192
    """L, the length in tokens that the model was trained on."""
    temperature: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _ordered("low_freq_factor", self.low_freq_factor, "high_freq_factor", self.high_freq_factor)

    def frequencies(self, width: int, theta: float) -> Frequencies:
        plain = frequencies(width, theta)
        turns = self.original_max_len * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        return _blend(plain, ((turns - low) / (high - low)).clamp(0, 1), self.factor)


@config
class LongRoPEScaling:
    """`ω_i / λ_i`, with a λ for each pair, found by search (Ding et al. 2024, §3).

    Texts of up to `original_max_len` tokens have the divisors `short`, longer ones `long`; each has
    one number for every pair, or one for all. Cosines and sines are multiplied by
    `attention_factor`, in Phi-3 `√(1 + ln s / ln L)` for texts s times as long as L.
    """

    kind: Literal["longrope"] = "longrope"
    short: tuple[PositiveFloat, ...]
    """The divisor λ of each pair in texts of up to `original_max_len` tokens."""
    long: tuple[PositiveFloat, ...]
    """The divisor λ of each pair in longer texts."""
    original_max_len: PositiveInt
    """L, the length in tokens that the model was trained on."""
    attention_factor: PositiveFloat = 1.0
    """The factor of cosines and sines."""

    @property
    def temperature(self) -> float:
        return self.attention_factor

    def check_width(self, width: int) -> None:
        """Raise `ValueError` unless there is one divisor for each pair, or for all."""
        for name, divisors in (("short", self.short), ("long", self.long)):
            if len(divisors) not in (1, width // 2):
                raise ValueError(
                    f"scaling.{name} has {len(divisors)} divisors, and {width} features of a head "
                    f"turn in {width // 2} pairs: give {width // 2} divisors, or one for all"
                )

    def constants(self, width: int, theta: float) -> Float[Tensor, "2 half"]:
        """The frequencies of short and of long texts."""
        plain = frequencies(width, theta)
        short, long = (
            plain / torch.tensor(divisors, dtype=torch.float64, device="cpu")
            for divisors in (self.short, self.long)
        )
        return torch.stack((short, long))

    def frequencies(
        self, constants: Float[Tensor, "2 half"], length: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch half"]:
        """The frequencies for each length."""
        short, long = constants.to(length.device)
        return torch.where(length[..., None] > self.original_max_len, long, short)


@config
class ProportionalScaling:
    """`ω'_i = ω_i` for the first pairs and zero for the rest: a share of a head is rotated.

    Gemma 4 (Google 2026). Unlike those of a `fraction`, the pairs are of the whole head: their
    features are half a head apart, and `ω_i = θ^(-2i/width)` has its whole width.
    """

    kind: Literal["proportional"] = "proportional"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """The share of the pairs that are rotated, rounded down to whole pairs."""

    temperature: ClassVar[float] = 1.0

    def frequencies(self, width: int, theta: float) -> Frequencies:
        plain = frequencies(width, theta)
        rotated = torch.arange(len(plain), device="cpu") < int(self.share * width // 2)
        return torch.where(rotated, plain, 0.0)


LengthScaling = DynamicScaling | LongRoPEScaling
"""The scalings whose frequencies depend on the length of a text."""

ScalingConfig = Annotated[
    LinearScaling
    | NTKScaling
    | DynamicScaling
    | YaRNScaling
    | Llama3Scaling
    | LongRoPEScaling
    | ProportionalScaling,
    Field(discriminator="kind"),
    WORD,
]
"""Any scaling of rotary frequencies."""


def scaling_examples() -> dict[str, ScalingConfig]:
    """One example of each scaling, for texts of more than 3 tokens and the base 2."""
    short = 3
    yarn = YaRNScaling(factor=3.0, beta_fast=0.4, beta_slow=0.25, original_max_len=short)
    return {
        "linear": LinearScaling(factor=2.0),
        "ntk": NTKScaling(factor=2.0),
        "dynamic": DynamicScaling(factor=2.0, original_max_len=short),
        "yarn": yarn,
        "yarn_unrounded": replace(yarn, truncate=False, attention_factor=0.8),
        "llama3": Llama3Scaling(low_freq_factor=0.3, high_freq_factor=1.0, original_max_len=short),
        "longrope": LongRoPEScaling(
            short=(1.5,), long=(3.0,), original_max_len=short, attention_factor=1.2
        ),
        "proportional": ProportionalScaling(share=0.5),
    }


def _ramp(width: int) -> Frequencies:
    """`2i / (width - 2)`: from 0 at the fastest pair to 1 at the slowest."""
    return torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / max(width - 2, 1)


def _blend(plain: Frequencies, gamma: Frequencies, factor: float) -> Frequencies:
    """`γ_i ω_i + (1 - γ_i) ω_i / s`."""
    return plain * (gamma + (1 - gamma) / factor)


def _ordered(low_name: str, low: float, high_name: str, high: float) -> None:
    if low >= high:
        raise ValueError(f"{low_name} = {low} must be less than {high_name} = {high}")
