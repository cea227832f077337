"""Nemotron and Apertus: a feed-forward layer without a gate, of squared ReLU or xIELU."""

from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import RotaryKeys, rope_table
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Settings
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
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.positions import Llama3Scaling, RotaryConfig

MODEL = replace(LLAMA_MODEL, feedforward=FeedForwardConfig(bias=False))

NEMOTRON = relative(
    "nemotron",
    decoder(
        replace(MODEL, norm=LayerNormConfig(gain="offset")),
        *llama_keys(
            "Nemotron",
            position=RotaryKeys(fraction=0.5),
            activation=keys.Choice(
                "feedforward.activation", "hidden_act", keys.ACTIVATIONS, "relu2"
            ),
            norm=norm_eps("norm_eps", 1e-5),
        ),
        ATTENTION_BIAS,
        keys.Value("feedforward.bias", "mlp_bias", False),
        keys.Ignored("hidden_dropout kv_channels"),
    ),
)
"""Parmar et al. 2024 (2402.16819), and Minitron: gains are kept as their distance from one."""


THETA = 12000000.0


@dataclass(frozen=True)
class _RotaryKeys(RotaryKeys):
    """Rotary keys; by default those of the published models, for 65,536 tokens."""

    def read(self, settings: Settings) -> keys.Fields:
        if rope_table(settings).tree:
            return super().read(settings)
        settings.expect("rope_theta", self.theta)
        scaling = Llama3Scaling(factor=8.0, original_max_len=8192)
        return {"position": RotaryConfig(theta=self.theta, scaling=scaling)}


APERTUS = relative(
    "apertus",
    decoder(
        replace(MODEL, attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig())),
        *llama_keys(
            "Apertus",
            position=_RotaryKeys(THETA),
            activation=keys.Choice(
                "feedforward.activation",
                "hidden_act",
                {"xielu": "xielu", **keys.ACTIVATIONS},
                "xielu",
            ),
            norm=norm_eps("rms_norm_eps", 1e-5),
        ),
        ATTENTION_BIAS,
        keys.Fixed("qk_norm", True),
        keys.Fixed("post_norm mlp_bias", False),
        keys.Fixed("hidden_dropout", 0.0),
    ),
    NAMES
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {
            "attention_residual.norm": "attention_layernorm",
            "feedforward_residual.norm": "feedforward_layernorm",
            "feedforward.activation": "mlp.act_fn",
        },
    ),
    classifies=("tags",),
)
"""Swiss AI Initiative 2025 (2509.14233)."""
