"""BLOOM and MPT: ALiBi in place of positions; biases and a norm of embeddings, or none of both."""

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.fused import concatenated_qkv, interleaved_qkv
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import ALiBiConfig
from addnorm.nn.residuals import PreNormConfig


def _four_times(*names: str) -> keys.Computed:
    """The default inner width: four times the model's width."""

    def read(settings: Settings) -> keys.Fields:
        return {"feedforward.d_ff": 4 * settings.required_int(*names)}

    def write(spec: ModelSpec) -> Json:
        d_model, d_ff = spec.model.d_model, getattr(spec.model.feedforward, "d_ff", None)
        if d_ff != 4 * d_model:
            raise InputError(f"this family has d_ff = 4 d_model = {4 * d_model}, not {d_ff}")
        return {}

    return keys.Computed(read, write)


BLOOM = Family(
    model_type="bloom",
    config=keys.ConfigTable(
        DecoderConfig(
            position=ALiBiConfig(),
            attention=AttentionConfig(n_heads=1),
            feedforward=FeedForwardConfig(activation="gelu_tanh"),
            residual=PreNormConfig(),
            embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig()),
            init="gpt2",
        ),
        (
            keys.VOCABULARY,
            keys.Size("d_model", "hidden_size n_embed"),
            keys.Size("n_layers", "n_layer num_hidden_layers"),
            keys.Size("attention.n_heads", "n_head num_attention_heads"),
            _four_times("hidden_size", "n_embed"),
            keys.Value("norm.eps embedding.norm.eps", "layer_norm_epsilon", 1e-5),
            keys.Value("attention.dropout", "attention_dropout", 0.0),
            keys.Value("dropout", "hidden_dropout", 0.0),
            keys.Fixed("apply_residual_connection_post_layernorm", False),
            keys.Ignored("slow_but_exact seq_length attention_softmax_in_fp32 offset_alibi"),
            keys.Ignored("bias_dropout_fusion masked_softmax_fusion skip_bias_add"),
            keys.Ignored("skip_bias_add_qkv n_inner"),
            DecoderHead("Bloom", tied=True),
        ),
    ),
    names={
        "embed.tokens": "transformer.word_embeddings",
        "embed.norm": "transformer.word_embeddings_layernorm",
        "stack.norm": "transformer.ln_f",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "transformer.h.*",
            {
                "attention_residual.norm": "input_layernorm",
                "attention.out_proj": "self_attention.dense",
                "feedforward_residual.norm": "post_attention_layernorm",
                "feedforward.up_proj": "mlp.dense_h_to_4h",
                "feedforward.down_proj": "mlp.dense_4h_to_h",
            },
        ),
    },
    others=interleaved_qkv("transformer.h.*.self_attention.query_key_value"),
    prefix="transformer.",
    ties=(("lm_head.weight", "transformer.word_embeddings.weight"),),
)
"""BigScience 2022 (2211.05100); their GELU has √(2/π) to eight digits."""


def _read_attention(settings: Settings) -> keys.Fields:
    table = settings.table("attn_config") or Settings({}, settings.where)
    table.expect("alibi", True)
    table.expect("alibi_bias_max", 8)
    table.expect("clip_qkv", None)
    table.expect("attn_type", "multihead_attention")
    table.expect("qk_ln", False)
    table.expect("prefix_lm", False)
    table.expect("attn_uses_sequence_id", False)
    table.ignore("attn_impl", "model_type", "softmax_fp32")
    values = {
        "attention.score.factor": table.optional_float("softmax_scale"),
        "attention.dropout": table.get("attn_pdrop", 0.0),
        "dropout": table.get("attn_pdrop", 0.0),
    }
    table.check_all_read()
    return values


def _write_attention(spec: ModelSpec) -> Json:
    factor = next(keys.values_at(spec, "attention.score.factor"), None)
    return {"attn_config": {"alibi": True, "softmax_scale": factor, "attn_pdrop": 0}}


MPT = Family(
    model_type="mpt",
    config=keys.ConfigTable(
        DecoderConfig(
            position=ALiBiConfig(),
            attention=AttentionConfig(n_heads=1, bias=False, out_bias=False),
            feedforward=FeedForwardConfig(activation="gelu", bias=False),
            norm=LayerNormConfig(bias=False),
            residual=PreNormConfig(),
            embedding=EmbeddingConfig(scale="one"),
            init="gpt2",
        ),
        (
            keys.VOCABULARY,
            keys.Size("d_model", "d_model hidden_size"),
            keys.Size("n_layers", "n_layers num_hidden_layers"),
            keys.Size("attention.n_heads", "n_heads num_attention_heads"),
            keys.Size("max_len", "max_seq_len", 2048),
            _four_times("d_model", "hidden_size"),
            keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
            keys.Computed(_read_attention, _write_attention),
            keys.Fixed("expansion_ratio", 4),
            keys.Fixed("no_bias", True),
            keys.Fixed("logit_scale", None),
            keys.Ignored("resid_pdrop emb_pdrop embedding_fraction init_device learned_pos_emb"),
            keys.Ignored("norm_type verbose init_config use_norm_bias"),
            DecoderHead("Mpt", tied=True),
        ),
    ),
    names={
        "embed.tokens": "transformer.wte",
        "stack.norm": "transformer.norm_f",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "transformer.blocks.*",
            {
                "attention_residual.norm": "norm_1",
                "attention.out_proj": "attn.out_proj",
                "feedforward_residual.norm": "norm_2",
                "feedforward.up_proj": "ffn.up_proj",
                "feedforward.down_proj": "ffn.down_proj",
            },
        ),
    },
    others=concatenated_qkv("transformer.blocks.*.attn.Wqkv"),
    prefix="transformer.",
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""MosaicML 2023. transformers follows neither `alibi_bias_max` nor `learned_pos_emb`."""
