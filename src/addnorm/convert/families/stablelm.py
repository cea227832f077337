"""StableLM: partial rotary positions, gated feed-forward, sequential or parallel sublayers."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import RotaryKeys
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    ACTIVATION,
    BODY,
    LLAMA_MODEL,
    decoder,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig

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
"""Bellagente et al. 2024 (2402.17834)."""
