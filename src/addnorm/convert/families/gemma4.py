"""Gemma 4 (text): layers that share keys and values, and per-layer token embeddings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    SLIDING,
    THETA,
    cycle_of,
    pattern_for_layer_type,
    read_layer_types,
    rotary_by_type,
    write_rotary_by_type,
    write_windows,
)
from addnorm.convert.core.family import ModelSpec, attention_of, embedding_of, feedforward_of
from addnorm.convert.core.maps import Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.gemma import ACTIVATION, D_HEAD, GLOBAL_THETA, Cap
from addnorm.convert.families.llama import LLAMA_MODEL, NAMES, decoder, relative
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, ScaledDotConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import SandwichNormConfig

D_HEAD_FULL = 512
WINDOW = 512
VOCABULARY = 262144
WIDTH = 256
EVERY = 6
SHARED = "num_kv_shared_layers"
OF_KEYS = "attention_k_eq_v"
OF_LAYER = ("head_dim", "num_key_value_heads")

FEEDFORWARD = GatedFeedForwardConfig(bias=False, activation="gelu_tanh")
BASE: DecoderConfig = replace(
    LLAMA_MODEL,
    attention=AttentionConfig(n_heads=1, bias=False, score=ScaledDotConfig(factor=1.0)),
    feedforward=FEEDFORWARD,
    residual=SandwichNormConfig(layer_factor=True),
    embedding=EmbeddingConfig(scale="sqrt"),
)


ROPE: Json = {
    SLIDING: {"rope_type": "default", "rope_theta": THETA},
    FULL: {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": GLOBAL_THETA,
    },
}
"""What transformers takes for absent rope parameters."""


def _types(settings: Settings) -> list[str]:
    """The layer types: by default five windows, then full attention; the last is always full."""
    n = settings.required_int("num_hidden_layers")
    default = [SLIDING if (i + 1) % EVERY else FULL for i in range(n)]
    types = read_layer_types(settings, n) or default
    return [*types[:-1], FULL]


def _sources(settings: Settings, types: Sequence[str]) -> dict[int, int]:
    """The layers without keys of their own, each with the layer whose keys it reads.

    It is the last one of the same type that has its own.
    """
    n_shared, n = settings.get(SHARED, 0), len(types)
    own = types[: n - n_shared]
    if not 0 <= n_shared < n or {*own} != {*types}:
        raise settings.refuse(SHARED, f"every type of the {n} layers needs one with its own keys")
    last = {kind: max(i for i, other in enumerate(own) if other == kind) for kind in own}
    return {i: last[types[i]] for i in range(len(own), n)}


def _heads(settings: Settings, types: Sequence[str]) -> list[tuple[int, int]]:
    """The width of a head and the number of key/value heads, for every layer."""
    width, n_kv = settings.get("head_dim", D_HEAD), settings.get("num_key_value_heads", 4)
    of_full = settings.get("global_head_dim", D_HEAD_FULL)
    n_full = settings.optional_int("num_global_key_value_heads")
    n_full = n_full if n_full and settings.get(OF_KEYS, False) else n_kv
    tables = settings.table("per_layer_config")
    if tables is None:
        return [(of_full, n_full) if kind == FULL else (width, n_kv) for kind in types]
    heads: list[tuple[int, int]] = []
    for i in range(len(types)):
        table = tables.table(str(i)) or Settings({}, tables.where)
        heads.append((table.get(OF_LAYER[0], width), table.get(OF_LAYER[1], n_kv)))
        table.check_all_read()
    tables.check_all_read()
    return heads


def _positions(settings: Settings) -> dict[str, RotaryConfig]:
    """The positions for each layer type."""
    tables = Settings({"rope_parameters": ROPE} | settings.tree, settings.where)
    settings.ignore("rope_parameters", "rope_scaling")
    full, sliding = rotary_by_type(tables, GLOBAL_THETA, THETA)
    return {FULL: full, SLIDING: sliding}


def _read_layers(settings: Settings) -> keys.Fields:
    """The attention, feed-forward width and positions of every layer."""
    types = _types(settings)
    sources, heads = _sources(settings, types), _heads(settings, types)
    size = settings.optional_int("sliding_window", missing=WINDOW)
    bias, eps = settings.get("attention_bias", False), settings.get("rms_norm_eps", 1e-6)
    of_keys = settings.get(OF_KEYS, False)
    d_ff = settings.required_int("intermediate_size")
    wide = settings.get("use_double_wide_mlp", False)
    feedforward = replace(FEEDFORWARD, d_ff=d_ff, activation=ACTIVATION.decoded(settings))
    positions = _positions(settings)
    layers: list[LayerConfig] = []
    for i, (kind, (d_head, n_kv)) in enumerate(zip(types, heads, strict=True)):
        attention = AttentionConfig(
            n_heads=settings.required_int("num_attention_heads"),
            n_kv_heads=n_kv,
            d_head=d_head,
            bias=bias,
            dropout=settings.get("attention_dropout", 0.0),
            qk_norm=RMSNormConfig(eps=eps),
            v_norm=RMSNormConfig(eps=eps, gain="none"),
            score=ScaledDotConfig(factor=1.0),
            pattern=pattern_for_layer_type(settings, kind, size),
            values="keys" if of_keys and kind == FULL and i not in sources else "projected",
            kv_layers_back=i - sources[i] if i in sources else None,
        )
        double = wide and i in sources
        layers.append(
            LayerConfig(
                attention=attention,
                position=positions[kind],
                feedforward=replace(feedforward, d_ff=2 * d_ff) if double else None,
            )
        )
    return {
        "attention": layers[0].attention,
        "position": positions[FULL],
        "feedforward": feedforward,
        "norm": RMSNormConfig(eps=eps),
        **cycle_of(layers),
    }


def _write_layers(spec: ModelSpec) -> Json:
    model = spec.model
    types, size = write_windows(model)
    layers = model.layers(model.n_layers)
    attentions = [attention_of(layer) for layer in layers]
    heads = [attention.heads(model.d_model) for attention in attentions]
    first = heads[0]
    own = {
        str(i): {OF_LAYER[0]: each.d_head, OF_LAYER[1]: each.n_kv_heads}
        for i, each in enumerate(heads)
        if each != first
    }
    of_keys = any(attention.values == "keys" for attention in attentions)
    shared = sum(attention.kv_layers_back is not None for attention in attentions)
    widths = [feedforward_of(layer, GatedFeedForwardConfig).d_ff for layer in layers]
    return {
        "num_attention_heads": first.n_heads,
        "num_key_value_heads": first.n_kv_heads,
        "head_dim": first.d_head,
        "per_layer_config": own,
        "attention_bias": attentions[0].bias,
        "attention_dropout": attentions[0].dropout,
        "rms_norm_eps": getattr(model.norm, "eps", 1e-6),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": len(set(widths)) > 1,
        OF_KEYS: of_keys,
        SHARED: shared,
        "layer_types": types,
        "sliding_window": size or WINDOW,
        "rope_parameters": write_rotary_by_type(model, types, THETA),
        **ACTIVATION.write(spec),
    }


def _read_vectors(settings: Settings) -> keys.Fields:
    """The per-layer token embeddings, whose table must cover the whole vocabulary."""
    width = settings.get("hidden_size_per_layer_input", WIDTH)
    n = settings.get("vocab_size_per_layer_input", VOCABULARY)
    if not width:
        return {}
    if n != settings.required_int("vocab_size"):
        raise settings.refuse("vocab_size_per_layer_input", "only as many as vocab_size")
    activation = ACTIVATION.decoded(settings)
    return {"embedding.per_layer": PerLayerEmbeddingConfig(width=width, activation=activation)}


def _write_vectors(spec: ModelSpec) -> Json:
    per_layer = embedding_of(spec.model).per_layer
    return {
        "hidden_size_per_layer_input": 0 if per_layer is None else per_layer.width,
        "vocab_size_per_layer_input": spec.vocab_size,
    }


def _factors(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of each layer's factor, which our last sublayer holds."""
    last = "feedforward" if embedding_of(spec.model).per_layer is None else "per_layer"
    for i in range(spec.model.n_layers):
        ours = f"stack.blocks.{i}.{last}_residual.layer_factor"
        yield Renamed(ours, f"model.layers.{i}.layer_scalar")


GEMMA4 = relative(
    "gemma4_text",
    decoder(
        BASE,
        keys.VOCABULARY,
        MAX_LEN,
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Computed(_read_layers, _write_layers),
        keys.Computed(_read_vectors, _write_vectors),
        Cap("head.softcap", "final_logit_softcapping", None),
        keys.Fixed("use_bidirectional_attention", None, ("vision",)),  # of pictures alone
        keys.Fixed("enable_moe_block", False),
        keys.Ignored("num_experts top_k_experts moe_intermediate_size"),
        DecoderHead("Gemma4", tied=True),
    ),
    NAMES
    | {
        "embed.per_layer.tokens": "model.embed_tokens_per_layer",
        "embed.per_layer.proj": "model.per_layer_model_projection",
        "embed.per_layer.norm": "model.per_layer_projection_norm",
    }
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {
            "per_layer.gate_proj": "per_layer_input_gate",
            "per_layer.out_proj": "per_layer_projection",
            "per_layer_residual.norm_out": "post_per_layer_input_norm",
        },
    ),
    others=_factors,
    mixers=(AttentionConfig,),
    ignored=(r"model\.layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm)\.weight",),  # of readers
    classifies=(),
)
"""Google 2026; mixtures of experts are refused."""
