"""Granite: LLaMA with factors for embeddings, scores, the residual stream, and logits."""

from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.settings import Settings
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    decoder,
    divides,
    llama_keys,
    relative,
)
from addnorm.nn.attention import ScaledDotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig


@dataclass(frozen=True)
class Divisor(keys.Key):
    """A number that divides logits; ours is a factor."""

    def decoded(self, settings: Settings) -> float:
        divisor = settings.get(self.names, 1.0)
        if divisor <= 0:
            raise settings.refuse(self.names, "logits are divided by a number above 0")
        return 1 / divisor

    def encoded(self, value: float | str) -> float:
        """The number whose inverse rounds exactly to our factor, if there is one nearby."""
        if isinstance(value, str):
            return 1.0
        near = 1 / value
        numbers = (round(near, 9), near, *(near * (1 + i * 2**-52) for i in (-1, 1)))
        return next((number for number in numbers if 1 / number == value), near)


SCALED = replace(
    LLAMA_MODEL,
    attention=replace(LLAMA_ATTENTION, score=ScaledDotConfig(factor=1.0)),
    embedding=EmbeddingConfig(scale=1.0),
    head=TokenHeadConfig(scale=1.0),
)

NUMBERS: tuple[keys.Entry, ...] = (
    keys.Value("embedding.scale", "embedding_multiplier", 1.0),
    keys.Value("attention.score.factor", "attention_multiplier", 1.0),
    keys.Value("residual.scale", "residual_multiplier", 1.0),
)

GRANITE = relative(
    "granite",
    decoder(
        SCALED,
        *llama_keys("Granite"),
        divides("granite"),
        ATTENTION_BIAS,
        keys.Value("feedforward.bias", "mlp_bias", False),
        *NUMBERS,
        Divisor("head.scale", "logits_scaling"),
    ),
    classifies=(),
)
"""IBM 2024; the numbers are those of Yang et al. 2022 (2203.03466)."""
