"""LLaMA 1 to 3: rotary positions, RMSNorm (pre-norm), SwiGLU, grouped-query attention."""

from addnorm.convert.core import keys
from addnorm.convert.families.llama_relatives import (
    ATTENTION_BIAS,
    LLAMA_MODEL,
    divides,
    llama_keys,
    relative,
)

LLAMA = relative(
    "llama",
    LLAMA_MODEL,
    (
        *llama_keys("Llama"),
        divides("llama"),
        ATTENTION_BIAS,
        keys.Value("feedforward.bias", "mlp_bias", False),
    ),
)
"""Touvron et al. 2023; Grattafiori et al. 2024."""
