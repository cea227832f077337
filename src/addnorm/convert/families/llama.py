"""LLaMA 1 to 3: rotary positions, RMSNorm (pre-norm), SwiGLU, grouped-query attention."""

from addnorm.convert.core.family import ModelSpec, attention_of, decoder
from addnorm.convert.core.rotary import read_rotary, rope_keys, write_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.llama_relatives import (
    check_divides,
    read_attention,
    read_gated_feedforward,
    read_model,
    relative,
    write_model,
)
from addnorm.nn.feedforward import GatedFeedForwardConfig


def _read(settings: Settings) -> ModelSpec:
    bias = settings.get("attention_bias", False)
    attention = read_attention(settings, bias=bias, out_bias=bias)
    feedforward = read_gated_feedforward(settings, bias=settings.get("mlp_bias", False))
    return read_model(settings, attention, read_rotary(settings), feedforward=feedforward)


def _write(spec: ModelSpec) -> Json:
    model = decoder(spec)
    check_divides(model, "llama")
    return {
        **write_model(spec, "llama", "Llama"),
        **rope_keys(write_rotary(model.position)),
        "attention_bias": attention_of(model).bias,
        "mlp_bias": isinstance(model.feedforward, GatedFeedForwardConfig)
        and model.feedforward.bias,
    }


LLAMA = relative("llama", read=_read, write=_write)
"""Touvron et al. 2023; Grattafiori et al. 2024."""
