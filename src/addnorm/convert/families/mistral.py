"""Mistral: LLaMA with a sliding window in every layer."""

from addnorm.convert.core.family import ModelSpec, decoder
from addnorm.convert.core.rotary import read_rotary, rope_keys, write_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.windows import FULL, SLIDING, pattern_for_layer_type, write_windows
from addnorm.convert.families.llama_relatives import (
    read_attention,
    read_model,
    relative,
    write_model,
)


def _read(settings: Settings) -> ModelSpec:
    size = settings.optional_int("sliding_window", missing=4096)
    pattern = pattern_for_layer_type(settings, FULL if size is None else SLIDING, size)
    attention = read_attention(settings, kv_heads=8, pattern=pattern)
    return read_model(settings, attention, read_rotary(settings))


def _write(spec: ModelSpec) -> Json:
    model = decoder(spec)
    return {
        **write_model(spec, "mistral", "Mistral"),
        **rope_keys(write_rotary(model.position)),
        "sliding_window": write_windows(model)[1],
    }


MISTRAL = relative("mistral", read=_read, write=_write)
"""Jiang et al. 2023."""
