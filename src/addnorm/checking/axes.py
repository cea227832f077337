"""The axes of the test matrix, derived from the unions of parts and the examples of each part.

An axis has one value for each member of its union: the first of its examples. The other examples
are variants, and so are changes that do not belong to one part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from addnorm.checking.definition import DEFINITIONS, MissingDefinition
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AttentionConfig,
    BilinearConfig,
    CoreConfig,
    DifferentialCoreConfig,
    EagerCoreConfig,
    GatedOutputConfig,
    OutputConfig,
    PatternConfig,
    ScoreConfig,
    WindowPatternConfig,
)
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.canon import CanonConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.embed import AnyEmbeddingConfig, EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import HeadConfig, TokenHeadConfig, TransformConfig
from addnorm.nn.layer_convolution import LayerConvolutionConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.moe import AnyFeedForwardConfig, MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.norms import DynamicTanhConfig, LayerNormConfig, NormConfig, RMSNormConfig
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    LearnedConfig,
    NoPositionConfig,
    PositionConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    ScalingConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import PreNormConfig, ResidualConfig, SandwichNormConfig
from addnorm.parts import examples, kind_of, members

Architecture = Literal["decoder", "encoder", "encoder_decoder"]
ARCHITECTURES: tuple[Architecture, ...] = ("decoder", "encoder", "encoder_decoder")
MODELS: Mapping[str, type] = {
    "decoder": DecoderConfig,
    "encoder": EncoderConfig,
    "encoder_decoder": EncoderDecoderConfig,
}

Changes = Mapping[str, Any]
"""New values of model fields; `attention.score` is a field of its attention."""


@dataclass(frozen=True)
class Axis:
    """A configuration field and the union of its parts; `unset` is a name for the value None.

    An axis that is not `crossed` only contributes variants.
    """

    field: str
    union: Any
    unset: str | None = None
    crossed: bool = True


PARTS: Mapping[str, Axis] = {
    "position": Axis("position", PositionConfig),
    "norm": Axis("norm", NormConfig),
    "placement": Axis("residual", ResidualConfig),
    "score": Axis("attention.score", ScoreConfig),
    "pattern": Axis("attention.pattern", PatternConfig),
    "core": Axis("attention.core", CoreConfig, unset="default_core"),
    "output": Axis("attention.output", OutputConfig, unset="plain_output"),
    "feedforward": Axis("feedforward", AnyFeedForwardConfig),
    "embedding": Axis("embedding", AnyEmbeddingConfig, crossed=False),
    "head": Axis("head", HeadConfig, crossed=False),
    "mixer": Axis("attention", MixerConfig, crossed=False),
}
"""The families of parts that are components of a model."""


def values(axis: Axis) -> dict[str, Changes]:
    """Return the first example of every member of the union that has one."""
    parts: dict[str, Changes] = {axis.unset: {axis.field: None}} if axis.unset else {}
    for member in members(axis.union):
        for name, part in [*examples(member).items()][:1]:
            parts[name] = {axis.field: part}
    return parts


# A head width other than d_model / n_heads, wide enough to distinguish the rotary layouts.
HEADS: Mapping[str, Changes] = {
    name: {"attention.n_heads": 4, "attention.n_kv_heads": n, "attention.d_head": 4}
    for name, n in (("mha", 4), ("gqa", 2), ("mqa", 1))
}

_CROSSED = {name: values(axis) for name, axis in PARTS.items() if axis.crossed}
AXES: Mapping[str, Mapping[str, Changes]] = {
    **{name: _CROSSED[name] for name in ("position", "norm", "placement", "score")},
    "heads": HEADS,
    **{name: _CROSSED[name] for name in ("pattern", "core", "output", "feedforward")},
}
"""The axes in the order of a cell's name, with the changes that each value makes."""

MIXERS: Mapping[str, Changes] = {
    name: {"attention": part, "cross_attention": AttentionConfig(n_heads=4, d_head=4)}
    for member in members(MixerConfig)
    if member is not AttentionConfig
    for name, part in examples(member).items()
}
"""The token mixers other than attention."""

TWO_WIDE_HEADS = AttentionConfig(n_heads=2, n_kv_heads=1, d_head=6, qk_norm=RMSNormConfig())
"""Attention whose heads are of other sizes than those of every other cell."""


WITH_KEYS = AttentionConfig(n_heads=4, n_kv_heads=2, d_head=4)
"""Attention with the keys that the others of a cell have, for layers that read them."""


def _every_second(attention: AttentionConfig) -> Changes:
    """A pattern of two layers: the second reads the keys and values of the first."""
    pattern = (LayerConfig(attention=attention), LayerConfig())
    return {"attention.kv_layers_back": 1, "layer_pattern": pattern}


@dataclass(frozen=True)
class Variant:
    """A single change outside of the axes, for the architectures that have the field."""

    changes: Changes
    architectures: tuple[Architecture, ...] = ARCHITECTURES


_ENCODER: tuple[Architecture, ...] = ("encoder",)
_BOTH: tuple[Architecture, ...] = ("encoder_decoder",)


def _examples() -> Iterator[tuple[str, Variant]]:
    """Yield every example outside of the axes; for embeddings and heads, all but the default."""
    for axis in PARTS.values():
        if axis.field == "attention":
            continue
        for number, member in enumerate(members(axis.union)):
            named = examples(member)
            for name in [*named][1 if axis.crossed or number == 0 else 0 :]:
                tokens = axis.field != "head" or isinstance(named[name], TokenHeadConfig)
                changes = {axis.field: named[name]}
                yield name, Variant(changes, ARCHITECTURES if tokens else _ENCODER)


VARIANTS: Mapping[str, Variant] = {
    **dict(_examples()),
    "alibi_three_heads": Variant(
        {"position": ALiBiConfig(), "attention.n_heads": 3, "attention.n_kv_heads": 3}
    ),
    "rounded_alibi": Variant({"position": RoundedALiBiConfig()}, ("decoder",)),
    "kerple_head_width_of_two": Variant({"position": KERPLEConfig(), "attention.d_head": 2}),
    "qk_norm": Variant({"attention.qk_norm": RMSNormConfig()}),
    "qk_layernorm_rotary": Variant(
        {"attention.qk_norm": LayerNormConfig(), "position": RotaryConfig()}
    ),
    "qk_dynamic_tanh": Variant({"attention.qk_norm": DynamicTanhConfig()}),
    "qk_norm_over_heads": Variant(
        {
            "attention.qk_norm": RMSNormConfig(eps=0.1),
            "attention.qk_norm_over": "heads",
            "attention.n_kv_heads": 2,
            "position": RotaryConfig(),
        }
    ),
    "qk_norm_after_rotation": Variant(
        {
            "attention.qk_norm": LayerNormConfig(),
            "attention.qk_norm_after": "rotation",
            "position": RotaryConfig(),
        }
    ),
    "v_norm": Variant({"attention.v_norm": RMSNormConfig(gain="none", eps=0.1)}),
    "values_of_keys": Variant(
        {
            "attention.values": "keys",
            "attention.qk_norm": RMSNormConfig(),
            "attention.v_norm": RMSNormConfig(gain="none"),
            "position": RotaryConfig(),
        }
    ),
    "value_residual_fixed": Variant({"n_layers": 3, "attention.value_residual": "fixed"}),
    "value_residual_learned": Variant(
        {
            "n_layers": 3,
            "attention.value_residual": "learned",
            "attention.v_norm": RMSNormConfig(gain="none"),
            "position": RotaryConfig(),
        }
    ),
    "value_residual_interpolated": Variant(
        {
            "n_layers": 3,
            "attention.value_residual": "interpolated",
            "layer_pattern": (LayerConfig(pattern=WindowPatternConfig(size=2)), LayerConfig()),
        }
    ),
    "cross_layer_attention": Variant(
        {"n_layers": 4, "position": RotaryConfig(), **_every_second(WITH_KEYS)}
    ),
    "cross_layer_attention_in_windows": Variant(
        {
            "n_layers": 4,
            "position": T5BiasConfig(),
            "attention.qk_norm": RMSNormConfig(),
            "attention.pattern": WindowPatternConfig(size=2),
            **_every_second(
                replace(WITH_KEYS, v_norm=RMSNormConfig(), pattern=WindowPatternConfig(size=2))
            ),
        }
    ),
    "cross_layer_attention_of_other_queries": Variant(
        {
            "n_layers": 3,
            "position": KERPLEConfig(),
            "layer_pattern": (
                LayerConfig(),
                LayerConfig(attention=replace(WITH_KEYS, n_heads=4, kv_layers_back=1)),
                LayerConfig(attention=replace(WITH_KEYS, n_heads=4, kv_layers_back=2)),
            ),
        }
    ),
    "no_attention_bias": Variant({"attention.bias": False}),
    "no_output_bias": Variant({"attention.out_bias": False}),
    "head_width_by_default": Variant(
        {"attention.n_heads": 2, "attention.n_kv_heads": None, "attention.d_head": None}
    ),
    "eager_core_transformer_xl": Variant(
        {"attention.core": EagerCoreConfig(), "position": TransformerXLConfig()}
    ),
    "differential_rotary_gated": Variant(
        {
            "attention.core": DifferentialCoreConfig(),
            "attention.output": GatedOutputConfig(),
            "position": RotaryConfig(),
        }
    ),
    "layer_patterns": Variant(
        {
            "position": RotaryConfig(),
            "layer_pattern": (
                LayerConfig(pattern=WindowPatternConfig(size=2)),
                LayerConfig(position=RotaryConfig(theta=3.0)),
            ),
        }
    ),
    "layers_without_positions": Variant(
        {"position": KERPLEConfig(), "layer_pattern": (LayerConfig(position=NoPositionConfig()),)}
    ),
    "four_layers_of_three_patterns": Variant(
        {
            "n_layers": 4,
            "layer_pattern": (
                LayerConfig(),
                LayerConfig(position=KERPLEConfig()),
                LayerConfig(pattern=WindowPatternConfig(size=2), position=RotaryConfig()),
            ),
        }
    ),
    "attention_beside_recurrence": Variant(
        {
            "position": RotaryConfig(),
            "layer_pattern": (
                LayerConfig(attention=RecurrentConfig(cell="gru", d_hidden=6)),
                LayerConfig(),
            ),
        }
    ),
    "recurrence_beside_attention": Variant(
        {
            "position": T5BiasConfig(),
            "attention": RecurrentConfig(),
            "layer_pattern": (LayerConfig(), LayerConfig(attention=TWO_WIDE_HEADS)),
        }
    ),
    "dense_beside_mixture": Variant(
        {
            "layer_pattern": (
                LayerConfig(feedforward=MixtureOfExpertsConfig(n_experts=3, top_k=2)),
                LayerConfig(feedforward=GatedFeedForwardConfig(d_ff=9)),
            )
        }
    ),
    "window_beside_full_of_other_heads": Variant(
        {
            "position": T5BiasConfig(),
            "n_layers": 3,
            "layer_pattern": (
                LayerConfig(attention=replace(TWO_WIDE_HEADS, pattern=WindowPatternConfig(size=2))),
                LayerConfig(),
            ),
        }
    ),
    "other_heads_kerple": Variant(
        {
            "position": KERPLEConfig(),
            "layer_pattern": (LayerConfig(), LayerConfig(attention=TWO_WIDE_HEADS)),
        }
    ),
    "other_heads_learned": Variant(
        {
            "position": LearnedConfig(),
            "layer_pattern": (LayerConfig(attention=TWO_WIDE_HEADS), LayerConfig()),
        }
    ),
    "layers_of_one_sublayer": Variant(
        {
            "n_layers": 4,
            "position": RotaryConfig(),
            "layer_pattern": (
                LayerConfig(attention=NoMixerConfig()),
                LayerConfig(feedforward=NoFeedForwardConfig()),
                LayerConfig(attention=Mamba2Config(), feedforward=NoFeedForwardConfig()),
                LayerConfig(),
            ),
        }
    ),
    "attention_alone": Variant({"feedforward": NoFeedForwardConfig()}),
    "layers_of_two_norms": Variant(
        {"layer_pattern": (LayerConfig(), LayerConfig(norm=RMSNormConfig()))}
    ),
    "four_layers_of_four_kinds": Variant(
        {
            "n_layers": 4,
            "position": TransformerXLConfig(),
            "layer_pattern": (
                LayerConfig(attention=ConvolutionConfig()),
                LayerConfig(attention=TWO_WIDE_HEADS, position=RotaryConfig()),
                LayerConfig(attention=RecurrentConfig(cell="rnn"), norm=RMSNormConfig()),
                LayerConfig(
                    attention=AttentionConfig(n_heads=2, core=DifferentialCoreConfig()),
                    feedforward=MixtureOfExpertsConfig(n_experts=2, top_k=1),
                ),
            ),
        }
    ),
    "causal_encoder": Variant({"causal": True, "position": T5BiasConfig()}, _ENCODER),
    "shared_layers": Variant({"n_layers": 3, "n_distinct_layers": 2}),
    "one_layer_three_times": Variant(
        {"n_layers": 3, "n_distinct_layers": 1, "position": TransformerXLConfig()}
    ),
    "hybrid_decoder": Variant(
        {
            "n_decoder_layers": 3,
            "position": ALiBiConfig(),
            "layer_pattern": (LayerConfig(), LayerConfig(norm=RMSNormConfig())),
            "decoder_layer_pattern": (
                LayerConfig(attention=RecurrentConfig()),
                LayerConfig(attention=TWO_WIDE_HEADS),
            ),
        },
        _BOTH,
    ),
    "cross_attention_of_two_heads": Variant(
        {
            "position": ALiBiConfig(),
            "cross_attention": AttentionConfig(n_heads=2, d_head=5, score=BilinearConfig()),
        },
        _BOTH,
    ),
    "cross_attention_differential": Variant(
        {
            "cross_attention": AttentionConfig(
                n_heads=4,
                d_head=3,
                core=DifferentialCoreConfig(),
                output=GatedOutputConfig(per="head"),
            )
        },
        _BOTH,
    ),
    "more_decoder_layers": Variant({"n_layers": 1, "n_decoder_layers": 3}, _BOTH),
    "decoder_sizes": Variant(
        {
            "decoder_attention": AttentionConfig(n_heads=2, n_kv_heads=1, d_head=6),
            "decoder_feedforward": GatedFeedForwardConfig(d_ff=9),
        },
        _BOTH,
    ),
    "narrow_table": Variant(
        {
            "embedding": EmbeddingConfig(d_embed=5),
            "head": TokenHeadConfig(
                transform=TransformConfig(activation="identity", bias=False, d_out=5)
            ),
        }
    ),
    "narrow_embedding": Variant(
        {
            "embedding": EmbeddingConfig(d_embed=6, map="last", norm=LayerNormConfig(), n_types=2),
            "head": TokenHeadConfig(transform=TransformConfig(norm=LayerNormConfig(), d_out=6)),
        }
    ),
    "per_layer_embedding": Variant(
        {"embedding": EmbeddingConfig(per_layer=PerLayerEmbeddingConfig(width=3))},
        ("decoder", "encoder"),
    ),
    "per_layer_embedding_with_factors": Variant(
        {
            "n_layers": 3,
            "embedding": EmbeddingConfig(
                per_layer=PerLayerEmbeddingConfig(width=4, activation="silu")
            ),
            "residual": SandwichNormConfig(layer_factor=True),
            "norm": RMSNormConfig(),
            "layer_pattern": (LayerConfig(pattern=WindowPatternConfig(size=2)), LayerConfig()),
        },
        ("decoder", "encoder"),
    ),
    "first_convolution": Variant(
        {"first_convolution": LayerConvolutionConfig(activation="tanh")}, ("encoder",)
    ),
    "first_convolution_of_five_tokens": Variant(
        {
            "first_convolution": LayerConvolutionConfig(kernel_size=5),
            "residual": PreNormConfig(),
            "norm": RMSNormConfig(),
        },
        ("encoder",),
    ),
    "canon": Variant({"canon": CanonConfig()}, ("decoder",)),
    "canon_before_a_mixture": Variant(
        {
            "canon": CanonConfig(places="C", kernel_size=2, bias=True),
            "feedforward": MixtureOfExpertsConfig(),
            "residual": PreNormConfig(),
            "norm": RMSNormConfig(),
        },
        ("decoder",),
    ),
    "canon_before_a_recurrence": Variant(
        {
            "canon": CanonConfig(places="A", kernel_size=3),
            "layer_pattern": (LayerConfig(attention=Mamba2Config()), LayerConfig()),
        },
        ("decoder",),
    ),
    "tables_apart": Variant({"share_embeddings": False}, _BOTH),
    "decoder_positions": Variant(
        {"position": LearnedConfig(), "decoder_position": ALiBiConfig()}, _BOTH
    ),
    "decoder_max_len": Variant(
        {
            "position": SinusoidalConfig(),
            "decoder_position": LearnedConfig(),
            "decoder_max_len": 70,
        },
        _BOTH,
    ),
}
"""The variants: one change at a time to an otherwise default cell."""

NOT_VARIED: Mapping[str, str] = {
    "kind": "it names the class",
    "d_model": "one small width serves all cells; the tests of parts have others",
    "max_len": "it bounds learned positions alone; tests/nn/positions/test_learned.py",
    "dropout": "it is random; tests/nn/test_dropout.py",
    "layer_drop": "it is random; tests/nn/test_dropout.py",
    "init": "the check draws every weight itself; tests/nn/test_init.py",
    "vocab_size": "it is read by recipes; tests/runs/recipes/test_recipe.py",
    "target_vocab_size": "it is read by recipes; tests/runs/recipes/test_recipe.py",
    "exits": "exits are read by exit_logits; tests/nn/test_exits.py",
    "mtp": "tokens further ahead are read by hidden_ahead; tests/nn/test_token_ahead.py",
    "input": "other inputs than tokens have their own tests; tests/models/test_inputs.py",
    "attention.kind": "it names the class",
    "attention.dropout": "it is random; tests/nn/attention/test_core.py",
}
"""The fields that are not varied, with the reason."""

WITH_FIELDS: Mapping[str, tuple[type, ...]] = {
    "": tuple(MODELS.values()),
    "attention.": (AttentionConfig,),
    "layer.": (LayerConfig,),
}
"""The classes whose fields must be varied or listed, by the prefix of the field names."""


def check_fields(configs: Mapping[str, tuple[type, ...]] = WITH_FIELDS) -> None:
    """Raise `InputError` for a field that is neither varied nor listed in `NOT_VARIED`."""
    by_name = {
        start + field.name: config
        for start, classes in configs.items()
        for config in classes
        for field in fields(config)
    }
    accounted = {*varied(), *NOT_VARIED}
    for name, config in by_name.items():
        if name not in accounted:
            raise InputError(
                f"{config.__name__}.{name.rpartition('.')[2]} is varied by no axis and no variant: "
                "add it to checking/axes.py, or to NOT_VARIED there with the reason"
            )
    if stale := accounted - {*by_name}:
        raise InputError(f"checking/axes.py names fields that no model has: {sorted(stale)}")


def varied() -> set[str]:
    """Return every field that an axis or a variant changes."""
    names = {"attention"}
    changes = [change for axis in [*AXES.values(), MIXERS] for change in axis.values()]
    for change in [*changes, *(variant.changes for variant in VARIANTS.values())]:
        names |= {*change}
        patterns = (change.get(name) or () for name in ("layer_pattern", "decoder_layer_pattern"))
        layers: list[LayerConfig] = [layer for pattern in patterns for layer in pattern]
        names |= {
            f"layer.{field.name}"
            for layer in layers
            for field in fields(layer)
            if getattr(layer, field.name) != field.default
        }
    return names


def check_definitions() -> None:
    """Raise `MissingDefinition` for a part of a union that has no reference definition."""
    unions = [*((name, axis.union) for name, axis in PARTS.items()), ("scaling", ScalingConfig)]
    for family, union in unions:
        for member in members(union):
            if member not in DEFINITIONS[family]:
                raise MissingDefinition(
                    f"{family} {kind_of(member)!r} has no definition: add it to "
                    f"checking/definition/{DEFINITIONS[family].file}"
                )
