"""Qwen 2 and 3: LLaMA with query/key/value biases (2) or query/key norms (3)."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.windows import (
    FULL,
    SLIDING,
    read_layer_types,
    read_windows,
    write_windows,
)
from addnorm.convert.families.llama_relatives import (
    ATTENTION_BIAS,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    llama_keys,
    relative,
)
from addnorm.nn.norms import RMSNormConfig


def _read_windows(settings: Settings) -> keys.Fields:
    """Layers from `max_window_layers` onwards have a window, unless `layer_types` is given."""
    n_layers = settings.required_int("num_hidden_layers")
    first = settings.get("max_window_layers", 28)
    size = settings.optional_int("sliding_window", missing=4096)
    size = size if settings.get("use_sliding_window", False) else None
    default_types = [SLIDING if size is not None and i >= first else FULL for i in range(n_layers)]
    return read_windows(settings, read_layer_types(settings, n_layers) or default_types, size)


def _write_windows(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": types.index(SLIDING) if size is not None else len(types),
        "layer_types": types,
    }


WINDOWS = keys.Computed(_read_windows, _write_windows)

QWEN2 = relative(
    "qwen2",
    replace(LLAMA_MODEL, attention=replace(LLAMA_ATTENTION, bias=True)),
    (*llama_keys("Qwen2", kv_heads=32), WINDOWS),
)
"""Yang et al. 2024."""

QWEN3 = relative(
    "qwen3",
    replace(LLAMA_MODEL, attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig())),
    (*llama_keys("Qwen3", kv_heads=32, d_head=128), WINDOWS, ATTENTION_BIAS),
)
"""Yang et al. 2025."""
