"""Gemma 1, 2 and 3 (text): scaled embeddings, offset RMSNorm; later sandwich norms, windows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from addnorm.convert.core.activations import activation_of
from addnorm.convert.core.family import ModelSpec, attention_of, decoder, one_stack
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import TensorMap
from addnorm.convert.core.rotary import THETA, read_rotary, rope_keys, rotary_of, write_rotary
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import decoder_head, is_body
from addnorm.convert.core.windows import (
    FULL,
    SLIDING,
    pattern_for_layer_type,
    read_layer_types,
    read_windows,
    shortest_cycle,
    write_windows,
)
from addnorm.convert.families.llama_relatives import (
    SANDWICH,
    check_divides,
    maps,
    read_attention,
    read_eps,
    read_gated_feedforward,
    read_model,
    relative,
    write_model,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, ScaledDotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation
from addnorm.nn.heads import HiddenHeadConfig, TokenHeadConfig
from addnorm.nn.norms import OffsetRMSNormConfig
from addnorm.nn.positions import PositionConfig, RotaryConfig
from addnorm.nn.residuals import SandwichNormConfig
from addnorm.parts import kind_of

GLOBAL_THETA = 1000000.0
WINDOW = 4096
TANH = "gelu_pytorch_tanh"


def _read_1(settings: Settings) -> ModelSpec:
    """In the first files, `hidden_act = "gelu"` means the tanh approximation."""
    _check_causal(settings)
    settings.expect("hidden_activation", None, TANH)
    activation = activation_of(settings, "hidden_act", TANH)
    bias = settings.get("attention_bias", False)
    return _model(
        settings,
        read_attention(settings, kv_heads=16, d_head=256, bias=bias, out_bias=bias),
        read_rotary(settings),
        activation="gelu_tanh" if activation == "gelu" else activation,
    )


def _check_causal(settings: Settings) -> None:
    """Raise `InputError` where no function is meant: without padding and with it, two of them."""
    if settings.get("use_bidirectional_attention", False):
        raise settings.refuse(
            "use_bidirectional_attention",
            "transformers then looks ahead or not as its kernel, and padding beside the text, have "
            "it, which is no one model; Gemma 3 has it in full",
        )


def _read_2(settings: Settings) -> ModelSpec:
    _check_causal(settings)
    softcap = _cap(settings, "attn_logit_softcapping", 50.0)
    size = settings.optional_int("sliding_window", missing=WINDOW)
    settings.expect("sliding_window_size", None, size)
    pattern, cycle = read_windows(settings, _types(settings, 2), size)
    return _model(
        settings,
        _attention(settings, softcap=softcap, pattern=pattern),
        read_rotary(settings),
        layer_pattern=cycle,
        residual=SandwichNormConfig(),
        softcap=_cap(settings, "final_logit_softcapping", 30.0),
    )


def _read_3(settings: Settings) -> ModelSpec:
    settings.expect("attn_logit_softcapping", None)  # transformers ignores it
    size = settings.optional_int("sliding_window", missing=WINDOW)
    both_ways = settings.get("use_bidirectional_attention", False)
    if both_ways and size is not None:
        size = size // 2 + 1  # so many on both sides together, the token itself not counted
    rotary, local = _rotary_by_type(settings)
    types = _types(settings, settings.get("sliding_window_pattern", 6))
    settings.get("_sliding_window_pattern", 6)
    every = [
        LayerConfig(
            pattern=pattern_for_layer_type(settings, kind, size),
            position=local if kind == SLIDING else rotary,
        )
        for kind in types
    ]
    norm = OffsetRMSNormConfig(eps=read_eps(settings))
    return _model(
        settings,
        _attention(settings, softcap=None, qk_norm=norm),
        rotary,
        layer_pattern=shortest_cycle(every),
        residual=SandwichNormConfig(),
        softcap=_cap(settings, "final_logit_softcapping", None),
        kind=EncoderConfig if both_ways else DecoderConfig,
    )


def _model(
    settings: Settings,
    attention: AttentionConfig,
    position: PositionConfig,
    *,
    activation: Activation | None = None,
    softcap: float | None = None,
    kind: type[DecoderConfig | EncoderConfig] = DecoderConfig,
    **overrides: Any,
) -> ModelSpec:
    if activation is None:
        activation = activation_of(settings, "hidden_activation", TANH)
        # The older of the two keys, no longer used.
        settings.expect("hidden_act", None, TANH, "gelu", settings.tree.get("hidden_activation"))
    head = decoder_head(settings, tied=settings.get("tie_word_embeddings", True))
    if kind is EncoderConfig and is_body(settings):
        head = HiddenHeadConfig()
    if isinstance(head, TokenHeadConfig):
        head = replace(head, softcap=softcap)
    return read_model(
        settings,
        attention,
        position,
        kind,
        norm=OffsetRMSNormConfig(eps=read_eps(settings)),
        embedding=EmbeddingConfig(scale="sqrt"),
        feedforward=read_gated_feedforward(settings, activation=activation),
        head=head,
        **overrides,
    )


def _attention(settings: Settings, *, softcap: float | None, **overrides: Any) -> AttentionConfig:
    """Attention with scores scaled by `query_pre_attn_scalar^-½`, not by the head width."""
    bias = settings.get("attention_bias", False)
    overrides |= {"bias": bias, "out_bias": bias}
    attention = read_attention(settings, kv_heads=4, d_head=256, **overrides)
    scalar = settings.optional_int("query_pre_attn_scalar", missing=256) or 256
    factor = None if scalar == attention.d_head else scalar**-0.5
    return replace(attention, score=ScaledDotConfig(factor=factor, softcap=softcap))


def _cap(settings: Settings, key: str, missing: float | None) -> float | None:
    """The cap under a key: None if null, `missing` if the key is absent."""
    cap = settings.optional_float(key)
    return cap if key in settings.tree else missing


def _types(settings: Settings, every: int) -> list[str]:
    """The layer types: by default, every layer has a window except each `every`-th."""
    n_layers = settings.required_int("num_hidden_layers")
    default_types = [SLIDING if (i + 1) % every else FULL for i in range(n_layers)]
    return read_layer_types(settings, n_layers) or default_types


def _rotary_by_type(settings: Settings) -> tuple[RotaryConfig, RotaryConfig]:
    """The positions of full-attention layers and of sliding-window layers."""
    theta = settings.get("rope_theta", GLOBAL_THETA)
    local = settings.get("rope_local_base_freq", THETA)
    both, old = settings.table("rope_parameters"), settings.table("rope_scaling")
    full, sliding = (None if both is None else both.table(kind) for kind in (FULL, SLIDING))
    if both is not None:
        both.check_all_read()
    if old is not None and old.tree:
        if "rope_type" not in old.tree and "type" in old.tree:  # followed by some versions alone
            raise old.refuse("type", "for layers of two types, name it rope_type")
        full = Settings((full.tree if full else {}) | old.tree, old.where)
    nothing = Settings({}, settings.where)
    for table in filter(None, (full, sliding)):
        table.expect("truncate", True)  # which transformers reads outside of the tables alone
    return rotary_of(full or nothing, settings, theta), rotary_of(
        sliding or nothing, settings, local
    )


def _write_1(spec: ModelSpec) -> Json:
    model = decoder(spec)
    return {
        **write_model(spec, "gemma", "Gemma"),
        **rope_keys(write_rotary(model.position)),
        "attention_bias": attention_of(model).bias,
    }


def _write_2(spec: ModelSpec) -> Json:
    model = decoder(spec)
    softcap = _score(model).softcap
    return {
        **_written(spec, "gemma2", "Gemma2"),
        **rope_keys(write_rotary(model.position)),
        "attn_logit_softcapping": softcap,
    }


def _write_3(spec: ModelSpec) -> Json:
    model = one_stack(spec)
    written = _written(spec, "gemma3_text", "Gemma3")
    by_type: dict[str, Json] = {
        kind: write_rotary(layer.position)
        for kind, layer in zip(written["layer_types"], model.layers(model.n_layers), strict=True)
    }
    full = by_type.setdefault(FULL, write_rotary(model.position))
    local = by_type.setdefault(SLIDING, {"rope_type": "default", "rope_theta": THETA})
    return {
        **written,
        **rope_keys(full),
        "rope_parameters": by_type,
        "rope_local_base_freq": local["rope_theta"],
    } | _both_ways(model, written)


def _both_ways(model: DecoderConfig | EncoderConfig, written: Json) -> Json:
    """What an encoder says, and what is said of its windows on both sides together."""
    body = isinstance(model.head, HiddenHeadConfig)
    keys: Json = {"architectures": ["Gemma3TextModel"]} if body else {}
    if isinstance(model, EncoderConfig):
        window = 2 * (written["sliding_window"] - 1)
        keys |= {"use_bidirectional_attention": True, "sliding_window": window}
    return keys


def _written(spec: ModelSpec, model_type: str, stem: str) -> Json:
    """The config keys shared by Gemma 2 and 3."""
    model = one_stack(spec)
    check_divides(model, model_type)
    types, size = write_windows(model)
    scale = _score(model).scale(attention_of(model).heads(model.d_model).d_head)
    return {
        **write_model(spec, model_type, stem, activation="hidden_activation"),
        "attention_bias": attention_of(model).bias,
        "query_pre_attn_scalar": round(scale**-2),
        "final_logit_softcapping": _softcap(model),
        "layer_types": types,
        "sliding_window": size or WINDOW,
    }


def _softcap(model: DecoderConfig | EncoderConfig) -> float | None:
    return None if isinstance(model.head, HiddenHeadConfig) else token_head_of(model).softcap


def _score(model: DecoderConfig | EncoderConfig) -> ScaledDotConfig:
    score = attention_of(model).score
    if not isinstance(score, ScaledDotConfig):
        raise InputError(f"gemma has no {kind_of(score)} scores")
    return score


def _sandwiched(spec: ModelSpec) -> Iterator[TensorMap]:
    return maps(spec, SANDWICH)


GEMMA = relative("gemma", read=_read_1, write=_write_1)
"""Gemma Team 2024 (2403.08295)."""

GEMMA2 = relative("gemma2", read=_read_2, write=_write_2, maps=_sandwiched)
"""Gemma Team 2024 (2408.00118)."""

GEMMA3 = relative("gemma3_text", read=_read_3, write=_write_3, maps=_sandwiched)
"""Gemma Team 2025."""
