"""Families that differ from LLaMA in a few keys, from Arcee and Seed-OSS to StableLM and GLM."""

from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    RotaryKeys,
    layers_of,
    pattern_for_layer_type,
    read_layer_types,
    read_windows,
    write_windows,
)
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.fused import concatenated_gate_up
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    BODY,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    NAMES,
    decoder,
    divides,
    heads_of_keys,
    llama_keys,
    norm_eps,
    relative,
)
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import ScaledDotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import NoPositionConfig, RotaryConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig, SandwichNormConfig

MLP_BIAS = keys.Value("feedforward.bias", "mlp_bias", False)

ARCEE = relative(
    "arcee",
    decoder(
        replace(LLAMA_MODEL, feedforward=FeedForwardConfig(bias=False)),
        *llama_keys(
            "Arcee",
            activation=keys.Choice(
                "feedforward.activation", "hidden_act", keys.ACTIVATIONS, "relu2"
            ),
            norm=norm_eps("rms_norm_eps", 1e-5),
        ),
        divides("arcee"),
        ATTENTION_BIAS,
        MLP_BIAS,
    ),
)
"""Without a gate, with squared ReLU: Arcee AI 2025."""

SEED_OSS = relative(
    "seed_oss",
    decoder(
        LLAMA_MODEL,
        *llama_keys("SeedOss", kv_heads=8, d_head=128),
        keys.Value("attention.bias", "attention_bias", True),
        keys.Value("attention.out_bias", "attention_out_bias", False),
        MLP_BIAS,
        keys.Value("dropout", "residual_dropout", 0.1),
    ),
)
"""ByteDance Seed Team 2025."""


def _read_types(settings: Settings) -> keys.Fields:
    n_layers = settings.required_int("num_hidden_layers")
    size = settings.optional_int("sliding_window", missing=4096)
    default_types = [FULL if size is None else SLIDING] * n_layers
    return read_windows(settings, read_layer_types(settings, n_layers) or default_types, size)


def _write_types(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    return {"layer_types": types, "sliding_window": size or 4096}  # which it always reads


MINISTRAL = relative(
    "ministral",
    decoder(
        LLAMA_MODEL,
        *llama_keys("Ministral", kv_heads=8),
        keys.Computed(_read_types, _write_types),
    ),
)
"""Mistral AI 2024: windows in some layers."""

HELIUM = relative(
    "helium",
    decoder(
        replace(LLAMA_MODEL, position=RotaryConfig(layout="interleaved")),
        *llama_keys(
            "Helium",
            kv_heads=20,
            d_head=128,
            position=RotaryKeys(100000.0, layout="interleaved"),
            norm=norm_eps("rms_norm_eps", 1e-8),
        ),
        keys.Value("attention.bias", "attention_bias", False),
        MLP_BIAS,
    ),
)
"""Neighbours are rotated as pairs: Kyutai 2025."""


def _read_layers(settings: Settings) -> keys.Fields:
    """The layer pattern: by default every fourth layer has no positions; windows on request."""
    n_layers = settings.required_int("num_hidden_layers")
    every = settings.optional_int("no_rope_layer_interval") or 4
    rotated = settings.integers("no_rope_layers", n_layers) or [
        int((i + 1) % every != 0) for i in range(n_layers)
    ]
    size = settings.optional_int("sliding_window")
    size = size if settings.get("use_sliding_window", False) else None
    types = read_layer_types(settings, n_layers) or [
        FULL if size is None or is_rotated else SLIDING for is_rotated in rotated
    ]
    return layers_of(
        LayerConfig(
            pattern=pattern_for_layer_type(settings, kind, size),
            position=None if is_rotated else NoPositionConfig(),
        )
        for kind, is_rotated in zip(types, rotated, strict=True)
    )


def _write_layers(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    layers = spec.model.layers(spec.model.n_layers)
    return {
        "layer_types": types,
        "sliding_window": size,
        "use_sliding_window": size is not None,
        "no_rope_layers": [int(not isinstance(x.position, NoPositionConfig)) for x in layers],
    }


SMOLLM3 = relative(
    "smollm3",
    decoder(
        replace(LLAMA_MODEL, attention=LLAMA_ATTENTION),
        *llama_keys("SmolLM3", kv_heads=4, tied=True, position=RotaryKeys(2000000.0)),
        keys.Computed(_read_layers, _write_layers),
        ATTENTION_BIAS,
        MLP_BIAS,
        keys.Ignored("max_window_layers"),
    ),
)
"""Every fourth layer has no positions (Yang et al. 2025, 2501.18795): Hugging Face 2025."""


STABLELM = relative(
    "stablelm",
    decoder(
        replace(LLAMA_MODEL, norm=LayerNormConfig()),
        *BODY,
        RotaryKeys(fraction=0.25),
        heads_of_keys(32),
        ACTIVATION,
        norm_eps("layer_norm_eps", 1e-5),
        keys.Value("attention.bias", "use_qkv_bias", False),
        keys.Choice(
            "residual",
            "use_parallel_residual",
            {True: ParallelConfig(), False: PreNormConfig()},
            False,
        ),
        keys.Value("dropout", "hidden_dropout", 0.0),
        keys.Fixed("qk_layernorm", False),  # which has a gain for each head
        DecoderHead("StableLm", tied=False),
    ),
)
"""Some features rotated, sublayers in turn or parallel: Bellagente et al. 2024 (2402.17834)."""


GLM_MODEL = replace(LLAMA_MODEL, position=RotaryConfig(layout="interleaved"))


def _glm_keys(stem: str) -> tuple[keys.Entry, ...]:
    return (
        *llama_keys(
            stem,
            kv_heads=2,
            d_head=128,
            position=RotaryKeys(fraction=0.5, layout="interleaved"),
            norm=norm_eps("rms_norm_eps", 1.5625e-07),
        ),
        keys.Value("attention.bias", "attention_bias", True),
    )


GLM_FUSED = concatenated_gate_up("model.layers.*.mlp.gate_up_proj")

GLM = relative(
    "glm",
    decoder(
        GLM_MODEL,
        *_glm_keys("Glm"),
    ),
    others=GLM_FUSED,
)
"""GLM 4: half of each head is rotated, in interleaved pairs: GLM Team 2024 (2406.12793)."""

GLM4 = relative(
    "glm4",
    decoder(
        replace(GLM_MODEL, residual=SandwichNormConfig()),
        *_glm_keys("Glm4"),
    ),
    NAMES
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {
            "attention_residual.norm_out": "post_self_attn_layernorm",
            "feedforward_residual.norm_in": "post_attention_layernorm",
            "feedforward_residual.norm_out": "post_mlp_layernorm",
        },
    ),
    others=GLM_FUSED,
)
"""GLM-4-0414, with a norm after each sublayer too: Z.ai 2025."""


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
        MLP_BIAS,
        *NUMBERS,
        Divisor("head.scale", "logits_scaling"),
    ),
    classifies=(),
)
"""Factors for embeddings, scores, the residual stream and logits (Yang et al. 2022,
2203.03466): IBM 2024."""
