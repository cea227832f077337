"""Mistral: LLaMA with a sliding window in every layer."""

from addnorm.convert.core.family import Shaped, decoder
from addnorm.convert.core.rotary import both_layouts, read_rotary, written_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.windows import FULL, SLIDING, pattern_of, written_windows
from addnorm.convert.families.llama_relatives import (
    read_attention,
    read_model,
    relative,
    written_model,
)


def _read(settings: Settings) -> Shaped:
    size = settings.number("sliding_window", missing=4096)
    pattern = pattern_of(settings, FULL if size is None else SLIDING, size)
    attention = read_attention(settings, kv_heads=8, pattern=pattern)
    return read_model(settings, attention, read_rotary(settings))


def _write(shaped: Shaped) -> Json:
    model = decoder(shaped)
    return {
        **written_model(shaped, "mistral", "MistralForCausalLM"),
        **both_layouts(written_rotary(model.position)),
        "sliding_window": written_windows(model)[1],
    }


MISTRAL = relative("mistral", read=_read, write=_write)
"""Jiang et al. 2023."""
