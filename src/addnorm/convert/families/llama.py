"""LLaMA 1 to 3, Mistral, Qwen 2 and 3; Gemma shares their tensor names and most keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    ROTARY,
    SLIDING,
    one_window,
    read_layer_types,
    read_windows,
    write_windows,
)
from addnorm.convert.core.decoder_tasks import HEAD_NAMES, TASKS, with_classifier
from addnorm.convert.core.family import ConfigMap, Family, ModelSpec, attention_of
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead, Task
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig

LLAMA_ATTENTION = AttentionConfig(n_heads=1, bias=False, out_bias=False)

LLAMA_MODEL = DecoderConfig(
    position=RotaryConfig(),
    attention=LLAMA_ATTENTION,
    feedforward=GatedFeedForwardConfig(bias=False),
    norm=RMSNormConfig(),
    residual=PreNormConfig(),
    embedding=EmbeddingConfig(scale="one"),
    dropout=0.0,
    init="gpt2",
)

ACTIVATION = keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "silu")

ATTENTION_BIAS = keys.Value("attention.bias attention.out_bias", "attention_bias", False)


def _n_heads(settings: Settings) -> int:
    return settings.required_int("num_attention_heads")


def _share(settings: Settings) -> int | None:
    """The default width of a head; None if the heads do not divide the model's width."""
    d_model, n_heads = settings.required_int("hidden_size"), _n_heads(settings)
    return None if d_model % n_heads else d_model // n_heads


def head_width(missing: int | None) -> keys.Size:
    """The key for the width of a head; `missing` is its value if absent."""
    return keys.Size("attention.d_head", "head_dim", _share, missing)


def heads_of_keys(missing: int | None = None) -> keys.Size:
    """The key for the number of key/value heads; `missing` is its value if absent."""
    return keys.Size("attention.n_kv_heads", "num_key_value_heads", _n_heads, missing)


BODY: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    MAX_LEN,
    *keys.SIZES,
    keys.Value("attention.dropout", "attention_dropout", 0.0),
)
"""The keys of sizes and of dropout, under the names that most decoders have."""


def norm_eps(name: str, default: float) -> keys.Value:
    """The key for the ε of all norms."""
    return keys.Value("norm.eps attention.qk_norm.eps", name, default)


RMS_NORM = norm_eps("rms_norm_eps", 1e-6)


def llama_keys(
    stem: str,
    *,
    kv_heads: int | None = None,
    d_head: int | None = None,
    tied: bool = False,
    activation: keys.Entry = ACTIVATION,
    position: keys.Entry = ROTARY,
    norm: keys.Entry = RMS_NORM,
) -> tuple[keys.Entry, ...]:
    """The keys of all relatives; `kv_heads`, `d_head` and `tied` are values for absent keys."""
    return (
        *BODY,
        position,
        heads_of_keys(kv_heads),
        head_width(d_head),
        activation,
        norm,
        DecoderHead(stem, tied),
    )


def divides(model_type: str) -> keys.Entry:
    """A check on writing that the heads divide the model's width, as transformers requires."""

    def check(spec: ModelSpec) -> Json:
        model = spec.model
        if model.d_model % (n_heads := attention_of(model).n_heads):
            raise InputError(
                f"{model_type} needs a width that divides into heads: d_model = {model.d_model}, "
                f"n_heads = {n_heads}"
            )
        return {}

    return keys.Computed(lambda settings: {}, check)


NAMES = {
    "embed.tokens": "model.embed_tokens",
    "stack.norm": "model.norm",
    "head": "lm_head",
    **within(
        "stack.blocks.*",
        "model.layers.*",
        {
            **{f"attention.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
            **{f"attention.{part}_norm": f"self_attn.{part}_norm" for part in "qk"},
            "attention.out_proj": "self_attn.o_proj",
            "norm": "input_layernorm",  # of a layer whose sublayers share it
            "attention_residual.norm": "input_layernorm",
            "feedforward_residual.norm": "post_attention_layernorm",
            # Gemma has norms before and after each sublayer.
            "attention_residual.norm_in": "input_layernorm",
            "attention_residual.norm_out": "post_attention_layernorm",
            "feedforward_residual.norm_in": "pre_feedforward_layernorm",
            "feedforward_residual.norm_out": "post_feedforward_layernorm",
            **{f"feedforward.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        },
    ),
}


def relative(
    model_type: str,
    config: ConfigMap,
    names: Mapping[str, str] = NAMES,
    *,
    ignored: tuple[str, ...] = (),
    classifies: tuple[Task, ...] = TASKS,
    **others: Any,
) -> Family:
    """A family with LLaMA's tensor names, or others, below `model`.

    Its decoders may also classify, in these tasks.
    """
    return Family(
        model_type=model_type,
        config=with_classifier(config, classifies),
        names=names,
        heads=HEAD_NAMES,
        prefix="model.",
        ignored=(r".*\.rotary_emb\.inv_freq", *ignored),
        ties=(("lm_head.weight", "model.embed_tokens.weight"),),
        **others,
    )


def decoder(base: DecoderConfig, *entries: keys.Entry) -> keys.ConfigTable:
    """A config table that also writes null token ids, for which transformers has defaults."""
    return keys.ConfigTable(base, entries, keys.NO_TOKENS)


LLAMA = relative(
    "llama",
    keys.ConfigTable(
        LLAMA_MODEL,
        (
            *llama_keys("Llama"),
            divides("llama"),
            ATTENTION_BIAS,
            keys.Value("feedforward.bias", "mlp_bias", False),
        ),
    ),
)
"""Touvron et al. 2023; Grattafiori et al. 2024."""


MISTRAL = relative(
    "mistral",
    keys.ConfigTable(
        LLAMA_MODEL,
        (*llama_keys("Mistral", kv_heads=8), one_window(4096)),
    ),
)
"""Jiang et al. 2023."""


def _read_windows(settings: Settings) -> keys.Fields:
    """The windows, by default in layers from `max_window_layers` on, or by `layer_types`."""
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
    keys.ConfigTable(
        replace(LLAMA_MODEL, attention=replace(LLAMA_ATTENTION, bias=True)),
        (*llama_keys("Qwen2", kv_heads=32), WINDOWS),
    ),
)
"""Yang et al. 2024."""

QWEN3 = relative(
    "qwen3",
    keys.ConfigTable(
        replace(LLAMA_MODEL, attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig())),
        (*llama_keys("Qwen3", kv_heads=32, d_head=128), WINDOWS, ATTENTION_BIAS),
    ),
)
"""Yang et al. 2025."""
