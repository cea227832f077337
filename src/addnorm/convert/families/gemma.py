"""Gemma 1, 2 and 3 (text): scaled embeddings, offset RMSNorm; later sandwich norms, windows."""

from dataclasses import dataclass, fields, replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    THETA,
    layers_by_type,
    read_layer_types,
    read_windows,
    rope_keys,
    rotary_by_type,
    write_rotary_by_type,
    write_windows,
)
from addnorm.convert.core.decoder_tasks import ClassifierHead, DecoderTables
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import is_body
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    divides,
    head_width,
    llama_keys,
    relative,
)
from addnorm.models import EncoderConfig
from addnorm.models.transformer import TransformerConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.nn.norms import OffsetRMSNormConfig
from addnorm.nn.residuals import SandwichNormConfig

GLOBAL_THETA = 1000000.0
WINDOW = 4096
D_HEAD = 256
TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Cap(keys.Key):
    """The bound of a soft cap: none if null, `missing` if absent."""

    missing: float | None

    def decoded(self, settings: Settings) -> float | None:
        cap = settings.optional_float(self.names)
        return cap if self.names in settings.tree else self.missing


def _check_causal(settings: Settings) -> keys.Fields:
    """Raise `InputError` for a model whose result in transformers depends on padding."""
    if settings.get("use_bidirectional_attention", False):
        raise settings.refuse(
            "use_bidirectional_attention",
            "its kernel and the padding decide whether transformers then looks ahead; only Gemma 3 "
            "is supported with it",
        )
    return {}


def _check_old_activation(settings: Settings) -> keys.Fields:
    """Raise `InputError` if the obsolete key names another activation."""
    settings.expect("hidden_act", None, TANH, "gelu", settings.tree.get("hidden_activation"))
    return {}


@dataclass(frozen=True)
class Scale(keys.Key):
    """The scale of scores, `query_pre_attn_scalar^-½`, unless it is that of the head width."""

    def decoded(self, settings: Settings) -> float | None:
        scalar = settings.optional_int(self.names, missing=256) or 256
        d_head = head_width(D_HEAD).decoded(settings)
        return None if scalar == d_head else scalar**-0.5

    def encoded(self, value: float) -> int:
        return round(value**-2)


SCALE = Scale("attention.score.factor", "query_pre_attn_scalar")


def _types(settings: Settings, every: int) -> list[str]:
    """The layer types: by default, every layer but each `every`-th has a window."""
    n_layers = settings.required_int("num_hidden_layers")
    default_types = [SLIDING if (i + 1) % every else FULL for i in range(n_layers)]
    return read_layer_types(settings, n_layers) or default_types


def _read_windows(settings: Settings) -> keys.Fields:
    size = settings.optional_int("sliding_window", missing=WINDOW)
    settings.expect("sliding_window_size", None, size)
    return read_windows(settings, _types(settings, 2), size)


def _write_windows(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    return {"layer_types": types, "sliding_window": size or WINDOW}


def _read_layers(settings: Settings) -> keys.Fields:
    """Gemma 3's layers: full-attention and sliding-window layers with different positions."""
    size = settings.optional_int("sliding_window", missing=WINDOW)
    if settings.get("use_bidirectional_attention", False) and size is not None:
        size = size // 2 + 1  # so many on both sides together, the token itself not counted
    positions = rotary_by_type(
        settings,
        settings.get("rope_theta", GLOBAL_THETA),
        settings.get("rope_local_base_freq", THETA),
    )
    every = settings.optional_int("sliding_window_pattern") or 6
    settings.ignore("_sliding_window_pattern")
    return layers_by_type(settings, _types(settings, every), size, positions)


def _write_layers(spec: ModelSpec) -> Json:
    model, tree = spec.model, _write_windows(spec)
    by_type = write_rotary_by_type(model, tree["layer_types"], THETA)
    if isinstance(model, EncoderConfig) and not model.causal:  # the windows of both sides together
        tree["sliding_window"] = 2 * (tree["sliding_window"] - 1)
    return {
        **tree,
        **rope_keys(by_type[FULL]),
        "rope_parameters": by_type,
        "rope_local_base_freq": by_type[SLIDING]["rope_theta"],
    }


def _read_body(settings: Settings) -> keys.Fields:
    return {"head": HiddenHeadConfig()} if is_body(settings) else {}


def _write_body(spec: ModelSpec) -> Json:
    body = isinstance(spec.model.head, HiddenHeadConfig)
    return {"architectures": ["Gemma3TextModel"]} if body else {}


ACTIVATION = keys.Choice("feedforward.activation", "hidden_activation", keys.ACTIVATIONS, TANH)
ACTIVATION_1 = keys.Choice(
    "feedforward.activation",
    "hidden_act",
    {TANH: "gelu_tanh", **keys.ACTIVATIONS, "gelu": "gelu_tanh"},  # in the first files, the same
    TANH,
)

MODEL = replace(LLAMA_MODEL, norm=OffsetRMSNormConfig(), embedding=EmbeddingConfig(scale="sqrt"))

GEMMA = relative(
    "gemma",
    keys.ConfigTable(
        MODEL,
        (
            *llama_keys("Gemma", kv_heads=16, d_head=D_HEAD, tied=True, activation=ACTIVATION_1),
            ATTENTION_BIAS,
            keys.Fixed("hidden_activation", None, (TANH,)),
            keys.Computed(_check_causal),
        ),
    ),
)
"""Gemma Team 2024 (2403.08295)."""

GEMMA2 = relative(
    "gemma2",
    keys.ConfigTable(
        replace(MODEL, residual=SandwichNormConfig()),
        (
            *llama_keys("Gemma2", kv_heads=4, d_head=D_HEAD, tied=True, activation=ACTIVATION),
            ATTENTION_BIAS,
            divides("gemma2"),
            keys.Computed(_check_causal),
            keys.Computed(_check_old_activation),
            SCALE,
            keys.Computed(_read_windows, _write_windows),
            Cap("attention.score.softcap", "attn_logit_softcapping", 50.0),
            Cap("head.softcap", "final_logit_softcapping", 30.0),
        ),
    ),
)
"""Gemma Team 2024 (2408.00118)."""

MODEL_3 = replace(
    MODEL,
    residual=SandwichNormConfig(),
    attention=replace(LLAMA_ATTENTION, qk_norm=OffsetRMSNormConfig()),
)
DECODER_3 = keys.ConfigTable(
    MODEL_3,
    (
        *llama_keys(
            "Gemma3",
            kv_heads=4,
            d_head=D_HEAD,
            tied=True,
            activation=ACTIVATION,
            position=keys.Computed(_read_layers, _write_layers),
        ),
        ATTENTION_BIAS,
        divides("gemma3_text"),
        keys.Computed(_check_old_activation),
        SCALE,
        keys.Fixed("attn_logit_softcapping", None),  # transformers ignores it
        Cap("head.softcap", "final_logit_softcapping", None),
        keys.Computed(lambda settings: {}, _write_body),
    ),
)
ENCODER_3 = keys.ConfigTable(
    EncoderConfig(**{part.name: getattr(MODEL_3, part.name) for part in fields(TransformerConfig)}),
    (
        *DECODER_3.entries,
        keys.Fixed("use_bidirectional_attention", True, written=True),
        keys.Computed(_read_body),
    ),
)


CAUSAL_3 = DecoderTables(DECODER_3, ClassifierHead("Gemma3Text", ("sequence",)))


class CausalOrBidirectional:
    """Gemma 3: a decoder, or an encoder with the same `model_type`."""

    def read(self, settings: Settings) -> ModelSpec:
        bidirectional = settings.get("use_bidirectional_attention", False)
        return (ENCODER_3 if bidirectional else CAUSAL_3).read(settings)

    def write(self, spec: ModelSpec) -> Json:
        bidirectional = isinstance(spec.model, EncoderConfig) and not spec.model.causal
        return (ENCODER_3 if bidirectional else CAUSAL_3).write(spec)


GEMMA3 = relative("gemma3_text", CausalOrBidirectional())
"""Gemma Team 2025."""
