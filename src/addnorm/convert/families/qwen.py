"""Qwen 2 and 3: LLaMA with query/key/value biases (2) or query/key norms (3)."""

from addnorm.convert.core.family import ModelSpec, attention_of, decoder
from addnorm.convert.core.rotary import read_rotary, rope_keys, write_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.windows import (
    FULL,
    SLIDING,
    read_layer_types,
    read_windows,
    write_windows,
)
from addnorm.convert.families.llama_relatives import (
    read_attention,
    read_eps,
    read_model,
    relative,
    write_model,
)
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import PatternConfig
from addnorm.nn.norms import RMSNormConfig


def _read_2(settings: Settings) -> ModelSpec:
    pattern, cycle = _windows(settings)
    attention = read_attention(settings, kv_heads=32, bias=True, pattern=pattern)
    return read_model(settings, attention, read_rotary(settings), layer_pattern=cycle)


def _read_3(settings: Settings) -> ModelSpec:
    pattern, cycle = _windows(settings)
    bias = settings.get("attention_bias", False)
    norm = RMSNormConfig(eps=read_eps(settings))
    overrides = {"bias": bias, "out_bias": bias, "pattern": pattern, "qk_norm": norm}
    attention = read_attention(settings, kv_heads=32, d_head=128, **overrides)
    return read_model(settings, attention, read_rotary(settings), layer_pattern=cycle)


def _windows(settings: Settings) -> tuple[PatternConfig, tuple[LayerConfig, ...]]:
    """Layers from `max_window_layers` onwards have a window, unless `layer_types` is given."""
    n_layers, first = (
        settings.required_int("num_hidden_layers"),
        settings.get("max_window_layers", 28),
    )
    size = settings.optional_int("sliding_window", missing=4096)
    size = size if settings.get("use_sliding_window", False) else None
    default_types = [SLIDING if size is not None and i >= first else FULL for i in range(n_layers)]
    return read_windows(settings, read_layer_types(settings, n_layers) or default_types, size)


def _write_2(spec: ModelSpec) -> Json:
    model = decoder(spec)
    return {
        **write_model(spec, "qwen2", "Qwen2"),
        **rope_keys(write_rotary(model.position)),
        **_written_windows(model),
    }


def _write_3(spec: ModelSpec) -> Json:
    model = decoder(spec)
    return {
        **write_model(spec, "qwen3", "Qwen3"),
        **rope_keys(write_rotary(model.position)),
        **_written_windows(model),
        "attention_bias": attention_of(model).bias,
    }


def _written_windows(model: DecoderConfig) -> Json:
    types, size = write_windows(model)
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": types.index(SLIDING) if size is not None else model.n_layers,
        "layer_types": types,
    }


QWEN2 = relative("qwen2", read=_read_2, write=_write_2)
"""Yang et al. 2024."""

QWEN3 = relative("qwen3", read=_read_3, write=_write_3)
"""Yang et al. 2025."""
