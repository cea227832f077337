"""Mistral: LLaMA with a sliding window in every layer."""

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.windows import FULL, SLIDING, pattern_for_layer_type, write_windows
from addnorm.convert.families.llama_relatives import LLAMA_MODEL, llama_keys, relative


def _read_window(settings: Settings) -> keys.Fields:
    size = settings.optional_int("sliding_window", missing=4096)
    kind = FULL if size is None else SLIDING
    return {"attention.pattern": pattern_for_layer_type(settings, kind, size)}


def _write_window(spec: ModelSpec) -> Json:
    return {"sliding_window": write_windows(spec.model)[1]}


MISTRAL = relative(
    "mistral",
    LLAMA_MODEL,
    (*llama_keys("Mistral", kv_heads=8), keys.Computed(_read_window, _write_window)),
)
"""Jiang et al. 2023."""
