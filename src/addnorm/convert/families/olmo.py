"""OLMo 1 to 3: first norms without weights, then of outputs and over all heads, then windows."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    layers_by_type,
    read_layer_types,
    rotary_by_type,
    write_rotary_by_type,
    write_windows,
)
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    NAMES,
    decoder,
    llama_keys,
    norm_eps,
    relative,
)
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.residuals import SandwichNormConfig

THETA = 500000.0
WINDOW = 4096

OLMO = relative(
    "olmo",
    decoder(
        replace(LLAMA_MODEL, norm=LayerNormConfig(bias=False, gain="none")),
        *llama_keys("Olmo", norm=keys.Fixed("clip_qkv", None)),
        ATTENTION_BIAS,
    ),
    classifies=("sequence",),
)
"""Groeneveld et al. 2024; models that clip queries, keys and values are refused."""

MODEL_2 = replace(
    LLAMA_MODEL,
    attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig(), qk_norm_over="heads"),
    residual=SandwichNormConfig(norms="output"),
)
NAMES_2 = NAMES | within(
    "stack.blocks.*.attention",
    "model.layers.*.self_attn",
    {f"{part}_norm.norm": f"{part}_norm" for part in "qk"},
)
RMS_NORM = norm_eps("rms_norm_eps", 1e-5)

OLMO2 = relative(
    "olmo2",
    decoder(MODEL_2, *llama_keys("Olmo2", norm=RMS_NORM), ATTENTION_BIAS),
    NAMES_2,
    classifies=("sequence",),
)
"""OLMo Team 2024 (2501.00656)."""


def _read_layers(settings: Settings) -> keys.Fields:
    """The layer pattern: every fourth layer has full attention and may scale its positions."""
    n_layers = settings.required_int("num_hidden_layers")
    default_types = [SLIDING if (i + 1) % 4 else FULL for i in range(n_layers)]
    types = read_layer_types(settings, n_layers) or default_types
    if settings.table("rope_parameters") is None:
        # transformers gives the base to full layers alone, and windows have the default.
        settings.expect("rope_theta", THETA)
    positions = rotary_by_type(settings, settings.get("rope_theta", THETA), THETA)
    size = settings.optional_int("sliding_window", missing=WINDOW)
    return layers_by_type(settings, types, size, positions)


def _write_layers(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    return {
        "layer_types": types,
        "sliding_window": size or WINDOW,
        "rope_parameters": write_rotary_by_type(spec.model, types, THETA),
    }


OLMO3 = relative(
    "olmo3",
    decoder(
        MODEL_2,
        *llama_keys("Olmo3", norm=RMS_NORM, position=keys.Computed(_read_layers, _write_layers)),
        ATTENTION_BIAS,
    ),
    NAMES_2,
    classifies=("sequence",),
)
"""OLMo Team 2025 (2512.13961): windows in three of four layers."""
