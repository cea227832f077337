"""Falcon: parallel sublayers, keys and values shared by groups of heads."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import ROTARY
from addnorm.convert.core.family import Family, ModelSpec, attention_of
from addnorm.convert.core.fused import fused, interleaved_qkv
from addnorm.convert.core.maps import Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.positions import RotaryConfig, RoundedALiBiConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.parts import kind_of


def _read_layout(settings: Settings) -> keys.Fields:
    """The key/value heads and the placement, by the architecture's generation."""
    n_heads = settings.required_int("num_attention_heads", "n_head")
    new = settings.get("new_decoder_architecture", False)
    shared = settings.get("multi_query", True)
    n_kv = settings.optional_int("num_kv_heads", "n_head_kv") or n_heads
    parallel = settings.get("parallel_attn", True)
    norms = settings.get("num_ln_in_parallel_attn", 2 if new else 1)
    if new and not parallel:
        raise settings.refuse("parallel_attn", "the new architecture has parallel sublayers")
    if not new and norms != 1:
        raise settings.refuse("num_ln_in_parallel_attn", "the old architecture has one norm")
    placement = ParallelConfig(norms="each" if norms == 2 else "one")
    return {
        "attention.n_kv_heads": n_kv if new or not shared else 1,
        "residual": placement if parallel else PreNormConfig(),
    }


def _write_layout(spec: ModelSpec) -> Json:
    heads = attention_of(spec.model).heads(spec.model.d_model)
    placement = spec.model.residual
    if not isinstance(placement, ParallelConfig | PreNormConfig):
        raise InputError(f"this family has no {kind_of(placement)} placement")
    parallel = isinstance(placement, ParallelConfig)
    each = parallel and placement.norms == "each"
    new = each or heads.n_kv_heads not in (1, heads.n_heads)
    return {
        "new_decoder_architecture": new,
        "multi_query": not new and heads.n_kv_heads == 1,
        "num_kv_heads": heads.n_kv_heads,
        "parallel_attn": parallel,
        "num_ln_in_parallel_attn": (2 if each else 1) if parallel else None,
    }


def _read_positions(settings: Settings) -> keys.Fields:
    """Rotary positions, or the ALiBi of Falcon-RW in place of them."""
    rotary = ROTARY.read(settings)
    return {"position": RoundedALiBiConfig()} if settings.get("alibi", False) else rotary


def _write_positions(spec: ModelSpec) -> Json:
    if isinstance(spec.model.position, RoundedALiBiConfig):
        return {"alibi": True}
    return {"alibi": False, **ROTARY.write(spec)}


def _norms(spec: ModelSpec) -> Iterator[TensorMap]:
    """The names of norms, which differ if each parallel sublayer has its own."""
    if spec.model.residual == ParallelConfig(norms="each"):
        for i in range(spec.model.n_layers):
            for ours, theirs in (("attention", "ln_attn"), ("feedforward", "ln_mlp")):
                for kind in ("weight", "bias"):
                    name = f"stack.blocks.{i}.{ours}_residual.norm.{kind}"
                    yield Renamed(name, f"transformer.h.{i}.{theirs}.{kind}")


FALCON = Family(
    model_type="falcon",
    config=keys.ConfigTable(
        DecoderConfig(
            position=RotaryConfig(),
            attention=AttentionConfig(n_heads=1, bias=False, out_bias=False),
            feedforward=FeedForwardConfig(bias=False),
            embedding=EmbeddingConfig(scale="one"),
            init="gpt2",
        ),
        (
            keys.VOCABULARY,
            keys.Size("max_len", "max_position_embeddings", 2048),
            keys.Computed(_read_positions, _write_positions),
            keys.Size("d_model", "hidden_size n_embed"),
            keys.Size("n_layers", "num_hidden_layers n_layer"),
            keys.Size("attention.n_heads", "num_attention_heads n_head"),
            keys.Computed(_read_layout, _write_layout),
            keys.Size(
                "feedforward.d_ff",
                "ffn_hidden_size",
                lambda s: 4 * s.required_int("hidden_size", "n_embed"),
            ),
            keys.Choice("feedforward.activation", "activation", keys.ACTIVATIONS, "gelu"),
            keys.Value("attention.bias attention.out_bias feedforward.bias", "bias", False),
            keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
            keys.Value("attention.dropout", "attention_dropout", 0.0),
            keys.Value("dropout", "hidden_dropout", 0.0),
            keys.Ignored("apply_residual_connection_post_layernorm ff_factor"),
            DecoderHead("Falcon", tied=True),
        ),
    ),
    names={
        "embed.tokens": "transformer.word_embeddings",
        "stack.norm": "transformer.ln_f",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "transformer.h.*",
            {
                "norm": "input_layernorm",
                "attention_residual.norm": "input_layernorm",
                "attention.out_proj": "self_attention.dense",
                "feedforward_residual.norm": "post_attention_layernorm",
                "feedforward.up_proj": "mlp.dense_h_to_4h",
                "feedforward.down_proj": "mlp.dense_4h_to_h",
            },
        ),
    },
    others=fused(_norms, interleaved_qkv("transformer.h.*.self_attention.query_key_value")),
    prefix="transformer.",
    ties=(("lm_head.weight", "transformer.word_embeddings.weight"),),
)
"""Almazrouei et al. 2023 (2311.16867)."""
