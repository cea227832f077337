"""ModernBERT: rotary positions, gated feed-forward, and alternating local and global attention."""

from collections.abc import Sequence

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    SLIDING,
    read_layer_types,
    rotary_of,
    shortest_cycle,
    write_rotary,
    write_windows,
)
from addnorm.convert.core.family import Family, ModelSpec, encoder
from addnorm.convert.core.fused import concatenated_gate_up, concatenated_qkv, fused
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads
from addnorm.models import EncoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, FullPatternConfig, WindowPatternConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import PositionConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig

GLOBAL, LOCAL = 160_000.0, 10_000.0
"""The rotary bases of global and local layers."""

IGNORED = """
    deterministic_flash_attn initializer_cutoff_factor layer_norm_eps position_embedding_type
    reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction
"""
"""Keys of training and of kernels, and keys of BERT without a use."""


def _read_layers(settings: Settings) -> keys.Fields:
    everywhere, cycle = _layers_of(settings, settings.required_int("num_hidden_layers"))
    return {
        "position": everywhere.position,
        "attention.pattern": everywhere.pattern,
        "layer_pattern": cycle,
    }


def _write_layers(spec: ModelSpec) -> Json:
    model = encoder(spec)
    types, size = write_windows(model)
    full, sliding = write_rotary(model.position), write_rotary(_local(model, types))
    return {
        "layer_types": types,
        "local_attention": 128 if size is None else 2 * (size - 1),
        "rope_parameters": {FULL: full, SLIDING: sliding},
        "global_rope_theta": full["rope_theta"],
        "local_rope_theta": sliding["rope_theta"],
        **_every(types),
    }


def _layers_of(settings: Settings, n_layers: int) -> tuple[LayerConfig, tuple[LayerConfig, ...]]:
    """The settings shared by all layers, and the repeating pattern of the others."""
    every = settings.optional_int("global_attn_every_n_layers", missing=3) or 3
    types = read_layer_types(settings, n_layers) or [
        SLIDING if i % every else FULL for i in range(n_layers)
    ]
    settings.expect("rope_scaling", None)
    tables = settings.table("rope_parameters") or Settings({}, settings.where)
    kinds = {
        FULL: LayerConfig(
            pattern=FullPatternConfig(),
            position=_rotary(settings, tables, FULL, settings.get("global_rope_theta", GLOBAL)),
        ),
        SLIDING: LayerConfig(
            # `local_attention` counts both sides together, without the token itself.
            pattern=WindowPatternConfig(size=settings.get("local_attention", 128) // 2 + 1),
            position=_rotary(settings, tables, SLIDING, settings.get("local_rope_theta", LOCAL)),
        ),
    }
    tables.check_all_read()
    if len(set(types)) == 1:
        return kinds[types[0]], ()
    by_type = {FULL: LayerConfig(), SLIDING: kinds[SLIDING]}
    return kinds[FULL], shortest_cycle([by_type[kind] for kind in types])


def _rotary(settings: Settings, tables: Settings, kind: str, theta: float) -> RotaryConfig:
    table = tables.table(kind) or Settings({}, settings.where)
    table.expect("truncate", True)  # which transformers reads outside of the tables alone
    return rotary_of(table, settings, theta)


def _local(model: EncoderConfig, types: Sequence[str]) -> PositionConfig:
    """The positions of sliding-window layers."""
    for layer, kind in zip(model.layers(model.n_layers), types, strict=True):
        if kind == SLIDING:
            return layer.position
    return RotaryConfig(theta=LOCAL)


def _every(types: Sequence[str]) -> Json:
    """The older key for global layers, if it can express these layer types."""
    n = types.index(FULL, 1) if FULL in types[1:] else len(types)
    regular = all((kind == FULL) == (i % n == 0) for i, kind in enumerate(types))
    return {"global_attn_every_n_layers": n} if regular else {}


NORM = LayerNormConfig(bias=False)
TRANSFORM = TransformConfig(norm=NORM)

TABLE = keys.ConfigTable(
    EncoderConfig(
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=1),
        feedforward=GatedFeedForwardConfig(),
        norm=NORM,
        residual=PreNormConfig(first=False),
        embedding=EmbeddingConfig(scale="one", norm=NORM),
        init="bert",
    ),
    (
        EncoderHeads(
            "ModernBert",
            {
                "tokens": TokenHeadConfig(transform=TRANSFORM),
                "sequence": ClassificationHeadConfig(transform=TRANSFORM),
                "tags": TaggingHeadConfig(transform=TRANSFORM),
                "spans": SpanHeadConfig(transform=TRANSFORM),
                "body": HiddenHeadConfig(),
            },
        ),
        keys.VOCABULARY,
        *keys.SIZES,
        keys.Size("max_len", "max_position_embeddings"),
        keys.Computed(_read_layers, _write_layers),
        keys.Value("attention.bias", "attention_bias", False),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        keys.Choice("feedforward.activation", "hidden_activation", keys.ACTIVATIONS, "gelu"),
        keys.Value("feedforward.bias", "mlp_bias", False),
        keys.Value("feedforward.dropout", "mlp_dropout", 0.0),
        keys.Value("norm.eps embedding.norm.eps head.transform.norm.eps", "norm_eps", 1e-5),
        keys.Value("norm.bias embedding.norm.bias head.transform.norm.bias", "norm_bias", False),
        keys.Value("dropout", "embedding_dropout", 0.0),
        keys.Value("head.tied", "tie_word_embeddings", True),
        keys.Value("head.bias", "decoder_bias", True),
        keys.Choice("head.pooling", "classifier_pooling", {"cls": "first", "mean": "mean"}, "cls"),
        keys.Value("head.dropout", "classifier_dropout", 0.0),
        keys.Choice("head.transform.activation", "classifier_activation", keys.ACTIVATIONS, "gelu"),
        keys.Value("head.transform.bias", "classifier_bias", False),
        keys.Ignored(IGNORED),
    ),
    # The default ids belong to a particular vocabulary.
    dict.fromkeys(f"{kind}_token_id" for kind in ("bos", "eos", "pad", "cls", "sep")),
)


MODERNBERT = Family(
    model_type="modernbert",
    config=TABLE,
    names={
        "embed.tokens": "model.embeddings.tok_embeddings",
        "embed.norm": "model.embeddings.norm",
        "stack.norm": "model.final_norm",
        "head.transform.proj": "head.dense",
        "head.transform.norm": "head.norm",
        "head.proj": "classifier",
        "head": "decoder",
        **within(
            "stack.blocks.*",
            "model.layers.*",
            {
                "attention_residual.norm": "attn_norm",
                "attention.out_proj": "attn.Wo",
                "feedforward_residual.norm": "mlp_norm",
                "feedforward.down_proj": "mlp.Wo",
            },
        ),
    },
    others=fused(
        concatenated_qkv("model.layers.*.attn.Wqkv"), concatenated_gate_up("model.layers.*.mlp.Wi")
    ),
    prefix="model.",
    ties=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),),
)
"""Warner et al. 2024."""
