"""Cohere's Command: parallel sublayers with one norm, interleaved rotary pairs, scaled logits."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    RotaryKeys,
    layers_of,
    pattern_for_layer_type,
    read_layer_types,
    write_windows,
)
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    LLAMA_MODEL,
    decoder,
    divides,
    llama_keys,
    norm_eps,
    relative,
)
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import NoPositionConfig, RotaryConfig
from addnorm.nn.residuals import ParallelConfig

MODEL = replace(
    LLAMA_MODEL,
    position=RotaryConfig(layout="interleaved"),
    norm=LayerNormConfig(bias=False),
    residual=ParallelConfig(),
)


def _keys(stem: str, theta: float) -> tuple[keys.Entry, ...]:
    return (
        *llama_keys(
            stem,
            tied=True,
            position=RotaryKeys(theta, layout="interleaved"),
            norm=norm_eps("layer_norm_eps", 1e-5),
        ),
        ATTENTION_BIAS,
        keys.Value("head.scale", "logit_scale", 0.0625),
        keys.Fixed("use_qk_norm", False),  # which has a gain for each head
    )


COHERE = relative(
    "cohere", decoder(MODEL, *_keys("Cohere", 500000.0), divides("cohere")), classifies=()
)
"""Command R: Cohere 2024."""


def _read_layers(settings: Settings) -> keys.Fields:
    """The layer pattern: windowed layers have positions, full-attention layers have none."""
    n_layers = settings.required_int("num_hidden_layers")
    size = settings.optional_int("sliding_window", missing=4096)
    every = settings.optional_int("sliding_window_pattern") or 4
    types = read_layer_types(settings, n_layers) or [
        SLIDING if (i + 1) % every else FULL for i in range(n_layers)
    ]
    settings.ignore("_sliding_window_pattern")
    return layers_of(
        LayerConfig(
            pattern=pattern_for_layer_type(settings, kind, size),
            position=NoPositionConfig() if kind == FULL else None,
        )
        for kind in types
    )


def _write_layers(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    for kind, layer in zip(types, spec.model.layers(len(types)), strict=True):
        if isinstance(layer.position, NoPositionConfig) == (kind == SLIDING):
            raise InputError("cohere2 has positions in the layers with a window, and only there")
    return {"layer_types": types, "sliding_window": size or 4096}


COHERE2 = relative(
    "cohere2",
    decoder(
        MODEL,
        *_keys("Cohere2", 10000.0),
        divides("cohere2"),
        keys.Computed(_read_layers, _write_layers),
        # Names of what all its models have.
        keys.Ignored(
            "layer_switch order_of_interleaved_layers position_embedding_type rotary_pct "
            "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding"
        ),
    ),
    classifies=(),
)
"""Command R7B and A: Cohere 2024, 2025."""
