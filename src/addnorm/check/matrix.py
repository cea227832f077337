"""The matrix: every combination of parts, in the smallest sizes that tell the parts apart."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Literal

from pydantic import ValidationError

from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    BlocksPatternConfig,
    DotConfig,
    EagerCoreConfig,
    FullPatternConfig,
    ScaledDotConfig,
    WindowPatternConfig,
)
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)
from addnorm.nn.positions import (
    ALiBiConfig,
    DynamicScaling,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    NoPositionConfig,
    NTKScaling,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
    YaRNScaling,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)

Family = Literal["decoder", "encoder", "encoder_decoder"]
FAMILIES: tuple[Family, ...] = ("decoder", "encoder", "encoder_decoder")
MODELS = {
    "decoder": DecoderConfig,
    "encoder": EncoderConfig,
    "encoder_decoder": EncoderDecoderConfig,
}
D_MODEL, N_LAYERS, MAX_LEN = 8, 2, 16

Axis = Mapping[str, Any]

POSITIONS: Axis = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedConfig(),
    "rotary": RotaryConfig(),
    "alibi": ALiBiConfig(),
    # Few buckets, so that even a short text has some with more than one distance.
    "t5": T5BiasConfig(buckets=6, max_distance=5),
    "transformer_xl": TransformerXLConfig(),
}
NORMS: Axis = {
    "layernorm": LayerNormConfig(),
    "rmsnorm": RMSNormConfig(),
    "offset_rmsnorm": OffsetRMSNormConfig(),
    "scalenorm": ScaleNormConfig(),
    "batchnorm": BatchNormConfig(),
}
PLACEMENTS: Axis = {
    "post": PostNormConfig(),
    "pre": PreNormConfig(),
    "sandwich": SandwichNormConfig(),
    "deepnorm": DeepNormConfig(),
    "parallel": ParallelConfig(),
}
SCORES: Axis = {
    "scaled_dot": ScaledDotConfig(),
    "dot": DotConfig(),
    "bilinear": BilinearConfig(),
    "additive": AdditiveConfig(),
}
# A head width that is not d_model / n_heads, and wide enough to tell the rotary layouts apart.
HEADS: Axis = {
    "mha": {"n_heads": 4, "n_kv_heads": 4, "d_head": 4},
    "gqa": {"n_heads": 4, "n_kv_heads": 2, "d_head": 4},
    "mqa": {"n_heads": 4, "n_kv_heads": 1, "d_head": 4},
}
PATTERNS: Axis = {
    "full": FullPatternConfig(),
    "window": WindowPatternConfig(size=3),
    "blocks": BlocksPatternConfig(size=2, local=1, n_global=1),
}
FEEDFORWARDS: Axis = {
    "relu": FeedForwardConfig(activation="relu", d_ff=6),
    "squared_relu": FeedForwardConfig(activation="squared_relu", d_ff=6),
    "gelu": FeedForwardConfig(activation="gelu", d_ff=6),
    "gelu_tanh": FeedForwardConfig(activation="gelu_tanh", d_ff=6),
    "glu": GatedFeedForwardConfig(activation="sigmoid", d_ff=6),
    "geglu": GatedFeedForwardConfig(activation="gelu", d_ff=6),
    "swiglu": GatedFeedForwardConfig(activation="silu", d_ff=6),
    "moe": MixtureOfExpertsConfig(n_experts=3, top_k=2, expert=GatedFeedForwardConfig(d_ff=4)),
}
MIXERS: Axis = {
    "rnn": RecurrentConfig(cell="rnn"),
    "lstm": RecurrentConfig(cell="lstm"),
    "gru": RecurrentConfig(cell="gru", d_hidden=6),
    "convolution": ConvolutionConfig(kernel_size=3),
    "convolutions": ConvolutionConfig(kernel_size=(2, 4), activation="gelu"),
}
"""What stands where attention does."""

AXES: Mapping[str, Axis] = {
    "position": POSITIONS,
    "norm": NORMS,
    "placement": PLACEMENTS,
    "score": SCORES,
    "heads": HEADS,
    "pattern": PATTERNS,
    "feedforward": FEEDFORWARDS,
}
"""What is varied, in the order of a cell's name."""

AROUND_MIXERS: Mapping[str, Axis] = {
    axis: AXES[axis] for axis in ("position", "norm", "placement", "feedforward")
}
"""What is varied around a mixer other than attention, which stands fourth in the name."""

_SHORT = 3  # places, so that a text is longer than the scaling was made for
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "rotary_interleaved": {"position": RotaryConfig(layout="interleaved")},
    "rotary_half_of_a_head": {"position": RotaryConfig(fraction=0.5)},
    "rotary_linear": {"position": RotaryConfig(scaling=LinearScaling(factor=2.0))},
    "rotary_ntk": {"position": RotaryConfig(scaling=NTKScaling(factor=2.0))},
    "rotary_dynamic": {
        "position": RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=_SHORT))
    },
    "rotary_yarn": {
        "position": RotaryConfig(
            theta=2.0,
            scaling=YaRNScaling(factor=3.0, beta_fast=0.4, beta_slow=0.25, original_max_len=_SHORT),
        )
    },
    "rotary_llama3": {
        "position": RotaryConfig(
            theta=2.0,
            scaling=Llama3Scaling(
                low_freq_factor=0.3, high_freq_factor=1.0, original_max_len=_SHORT
            ),
        )
    },
    "alibi_three_heads": {"position": ALiBiConfig(), "n_heads": 3, "n_kv_heads": 3},
    "t5_default_buckets": {"position": T5BiasConfig()},
    "layernorm_without_bias": {"norm": LayerNormConfig(bias=False, eps=0.1)},
    "parallel_norm_each": {"residual": ParallelConfig(norms="each")},
    "qk_norm": {"qk_norm": RMSNormConfig()},
    "qk_layernorm_rotary": {"qk_norm": LayerNormConfig(), "position": RotaryConfig()},
    "no_attention_bias": {"bias": False},
    "head_width_by_default": {"n_heads": 2, "n_kv_heads": 2, "d_head": None},
    "eager_core": {"core": EagerCoreConfig()},
    "eager_core_transformer_xl": {"core": EagerCoreConfig(), "position": TransformerXLConfig()},
    "cross_attention_of_two_heads": {
        "position": ALiBiConfig(),
        "cross_attention": AttentionConfig(n_heads=2, d_head=5, score=BilinearConfig()),
    },
    "blocks_alone": {"pattern": BlocksPatternConfig(size=2, local=0)},
    "window_of_one": {"pattern": WindowPatternConfig(size=1)},
    "mlp_without_bias": {"feedforward": FeedForwardConfig(bias=False)},
    "gated_with_bias": {"feedforward": GatedFeedForwardConfig(bias=True)},
    "one_expert_of_four": {"feedforward": MixtureOfExpertsConfig(n_experts=4, top_k=1)},
    "ungated_experts": {
        "feedforward": MixtureOfExpertsConfig(n_experts=3, expert=FeedForwardConfig(d_ff=4))
    },
    "untied_head": {"head": TokenHeadConfig(tied=False)},
    "plain_embedding": {"embedding": EmbeddingConfig(scale="one")},
    "normed_embedding": {"embedding": EmbeddingConfig(norm=LayerNormConfig(), n_types=2)},
    "batchnormed_embedding": {"embedding": EmbeddingConfig(norm=BatchNormConfig())},
}
"""What has no axis of its own: one change at a time, to cells that are otherwise usual."""

USUAL: Mapping[str, str] = {
    "position": "sinusoidal",
    "norm": "layernorm",
    "placement": "pre",
    "score": "scaled_dot",
    "heads": "gqa",
    "pattern": "full",
    "feedforward": "gelu",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One tiny model: a family, and the name of its part on every axis.

    `mixer` stands in place of score, heads and pattern; `variant` changes one part more.
    """

    family: Family
    parts: tuple[tuple[str, str], ...]
    mixer: str | None = None
    variant: str | None = None

    @property
    def id(self) -> str:
        """Such as `decoder/rotary/rmsnorm/pre/scaled_dot/gqa/window/swiglu`."""
        names = [name for _, name in self.parts]
        if self.mixer:
            names.insert(_FOURTH, self.mixer)
        return "/".join([self.family, *names, *([self.variant] if self.variant else [])])

    @classmethod
    def of(cls, name: str) -> "Cell":
        """The cell of this name."""
        family, *names = name.split("/")
        variant = names.pop() if names[-1] in VARIANTS else None
        mixer = names.pop(_FOURTH) if names[_FOURTH] in MIXERS else None
        parts = tuple(zip(AROUND_MIXERS if mixer else AXES, names, strict=True))
        return cls(family=_FAMILY[family], parts=parts, mixer=mixer, variant=variant)

    def part(self, axis: str) -> Any:
        """The part on this axis."""
        return AXES[axis][dict(self.parts)[axis]]

    def config(self) -> DecoderConfig | EncoderConfig | EncoderDecoderConfig:
        """The model. Raises `ValueError` for parts that make no sense together."""
        changes = dict(VARIANTS[self.variant]) if self.variant else {}
        fields: dict[str, Any] = {
            "d_model": D_MODEL,
            "n_layers": N_LAYERS,
            "max_len": MAX_LEN,
            "dropout": 0.0,
            "position": self.part("position"),
            "norm": self.part("norm"),
            "residual": self.part("placement"),
            "feedforward": self.part("feedforward"),
        }
        if self.mixer:
            fields["attention"] = MIXERS[self.mixer]
            fields["cross_attention"] = AttentionConfig(**HEADS["gqa"])
        else:
            attention_fields = {name: self.part(name) for name in ("score", "pattern")} | self.part(
                "heads"
            )
            attention_fields |= {
                name: changes.pop(name) for name in [*changes] if name in _OF_ATTENTION
            }
            fields["attention"] = AttentionConfig(**attention_fields)
        return MODELS[self.family](**(fields | changes))

    def refusal(self) -> str | None:
        """Why the parts make no sense together; None where they do."""
        try:
            self.config()
        except ValidationError as error:
            return "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
        return None


_FOURTH = 3
_FAMILY: Mapping[str, Family] = {family: family for family in FAMILIES}
_OF_ATTENTION = {"n_heads", "n_kv_heads", "d_head", "bias", "qk_norm", "score", "pattern", "core"}


def cells() -> Iterator[Cell]:
    """Every cell, the refused ones too, always in the same order.

    Decoders in every combination; encoders and encoder–decoders in every combination but that of
    the feed-forward layer, which acts on each token alone and is dealt out over the others, so
    that every pair of parts still meets; other mixers likewise; and the variants.
    """
    yield from _crossed("decoder", AXES)
    for family in FAMILIES[1:]:
        yield from _dealt(family, AXES, "feedforward")
    for family, mixer in product(FAMILIES, MIXERS):
        for cell in _dealt(family, AROUND_MIXERS, "feedforward"):
            yield replace(cell, mixer=mixer)
    for family, variant in product(FAMILIES, VARIANTS):
        for placement, pattern in product(("post", "pre", "parallel"), PATTERNS):
            parts = {**USUAL, "placement": placement, "pattern": pattern}
            yield Cell(family=family, parts=tuple(parts.items()), variant=variant)


def _crossed(family: Family, axes: Mapping[str, Axis]) -> Iterator[Cell]:
    """Every combination."""
    for names in product(*axes.values()):
        yield Cell(family=family, parts=tuple(zip(axes, names, strict=True)))


def _dealt(family: Family, axes: Mapping[str, Axis], last: str) -> Iterator[Cell]:
    """Every combination of the other axes, each with one of the last, by the sum of the others."""
    others = {name: axis for name, axis in axes.items() if name != last}
    dealt = list(axes[last])
    for numbers in product(*(range(len(axis)) for axis in others.values())):
        parts = {a: list(others[a])[i] for a, i in zip(others, numbers, strict=True)}
        parts[last] = dealt[sum(numbers) % len(dealt)]
        yield Cell(family=family, parts=tuple(parts.items()))


def named(pattern: str) -> list[Cell]:
    """The cells with parts named so, one after another; `*` stands for anything.

    Raises `InputError` where there is none.
    """
    found = [cell for cell in cells() if fnmatchcase(f"/{cell.id}", f"*/{pattern}*")]
    if not found:
        names = [*FAMILIES, *MIXERS, *VARIANTS, *(name for axis in AXES.values() for name in axis)]
        hint = nearest(pattern.strip("*/").rpartition("/")[2], names)
        raise InputError(f"no cell of the matrix has parts called {pattern!r}.{hint}")
    return found


def sample(n: int, seed: int, among: Sequence[Cell]) -> list[Cell]:
    """`n` of the cells, always the same for a seed; all, where there are no more."""
    return random.Random(seed).sample(among, min(n, len(among)))
