"""LLaMA 1 to 3: rotary positions, RMSNorm before each sublayer, SwiGLU, shared key/value heads."""

from addnorm.convert.core.family import Shaped, attention_of, decoder
from addnorm.convert.core.rotary import both_layouts, read_rotary, written_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.llama_relatives import (
    check_divides,
    read_attention,
    read_gated,
    read_model,
    relative,
    written_model,
)
from addnorm.nn.feedforward import GatedFeedForwardConfig


def _read(settings: Settings) -> Shaped:
    bias = settings.get("attention_bias", False)
    attention = read_attention(settings, bias=bias, out_bias=bias)
    feedforward = read_gated(settings, bias=settings.get("mlp_bias", False))
    return read_model(settings, attention, read_rotary(settings), feedforward=feedforward)


def _write(shaped: Shaped) -> Json:
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
