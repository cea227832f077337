"""GLM 4 (9B and later): half of each head rotated in interleaved pairs; later also output norms."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import RotaryKeys
from addnorm.convert.core.fused import concatenated_gate_up
from addnorm.convert.core.maps import within
from addnorm.convert.families.llama import (
    LLAMA_MODEL,
    NAMES,
    decoder,
    llama_keys,
    norm_eps,
    relative,
)
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import SandwichNormConfig

MODEL = replace(LLAMA_MODEL, position=RotaryConfig(layout="interleaved"))


def _keys(stem: str) -> tuple[keys.Entry, ...]:
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


FUSED = concatenated_gate_up("model.layers.*.mlp.gate_up_proj")

GLM = relative(
    "glm",
    decoder(
        MODEL,
        *_keys("Glm"),
    ),
    others=FUSED,
)
"""GLM Team 2024 (2406.12793)."""

GLM4 = relative(
    "glm4",
    decoder(
        replace(MODEL, residual=SandwichNormConfig()),
        *_keys("Glm4"),
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
    others=FUSED,
)
"""GLM-4-0414, with a norm after each sublayer too: Z.ai 2025."""
