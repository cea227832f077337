"""LLaMA 1 to 3: rotary positions, RMSNorm before each sublayer, SwiGLU, shared key/value heads."""

from addnorm.convert.family import ModelSpec, attention_of, decoder
from addnorm.convert.llama_relatives import (
    check_divides,
    read_attention,
    read_gated,
    read_model,
    relative,
    written_model,
)
from addnorm.convert.rotary import both_layouts, read_rotary, written_rotary
from addnorm.convert.settings import Json, Settings
from addnorm.nn.feedforward import GatedFeedForwardConfig


def _read(settings: Settings) -> ModelSpec:
    bias = settings.get("attention_bias", False)
    attention = read_attention(settings, bias=bias, out_bias=bias)
    feedforward = read_gated(settings, bias=settings.get("mlp_bias", False))
    return read_model(settings, attention, read_rotary(settings), feedforward=feedforward)


def _write(shaped: ModelSpec) -> Json:
    model = decoder(shaped)
    check_divides(model, "llama")
    return {
        **written_model(shaped, "llama", "LlamaForCausalLM"),
        **both_layouts(written_rotary(model.position)),
        "attention_bias": attention_of(model).bias,
        "mlp_bias": isinstance(model.feedforward, GatedFeedForwardConfig)
        and model.feedforward.bias,
    }


LLAMA = relative("llama", read=_read, write=_write)
"""Touvron et al. 2023; Grattafiori et al. 2024."""
