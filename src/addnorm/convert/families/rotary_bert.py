"""BERT with rotary positions: Jina embeddings v3, GTE and NomicBERT, all post-norm."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    MAX_LEN,
    rope_keys,
    rope_table,
    rotary_of,
    write_rotary,
)
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.fused import concatenated_qkv, fused
from addnorm.convert.core.maps import Concatenated, TensorMap, within
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.tasks import EncoderHeads, Task, like_feedforward
from addnorm.convert.families.bert import HEADS, RELICS, like_roberta, untied_scores
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import RotaryConfig

LENGTH = "max_position_embeddings"

WITHOUT_POOLER: dict[Task, HeadConfig] = {
    **{task: head for task, head in HEADS.items() if task != "spans"},
    "body": HiddenHeadConfig(),
}


def _rotary(theta: float, *names: str) -> keys.Entry:
    """The keys for rotary positions; `theta` is the base if no key in `names` gives it."""

    def read(settings: Settings) -> keys.Fields:
        base = next((settings.get(name, theta) for name in names if settings.has(name)), theta)
        table, base = rope_table(settings), settings.get("rope_theta", base)
        if not settings.has(LENGTH) and settings.has("n_positions"):
            sizes = {LENGTH: settings.get("n_positions", 0)}
            settings = Settings(settings.tree | sizes, settings.where)
        return {"position": rotary_of(table, settings, base)}

    return keys.Computed(read, lambda spec: rope_keys(write_rotary(spec.model.position)))


def rotary_table(
    heads: EncoderHeads,
    attention: AttentionConfig,
    feedforward: FeedForwardConfig | GatedFeedForwardConfig,
    *entries: keys.Entry,
    activation: str = "gelu",
    types: int = 1,
    dropout: float = 0.1,
) -> keys.ConfigTable:
    """BERT's config table with the parts and defaults of a family."""
    return keys.ConfigTable(
        EncoderConfig(
            position=RotaryConfig(),
            attention=attention,
            feedforward=feedforward,
            embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig()),
            init="bert",
        ),
        (
            heads,
            keys.VOCABULARY,
            keys.Size("d_model", "hidden_size n_embd"),
            keys.Size("n_layers", "num_hidden_layers n_layer"),
            keys.Size("attention.n_heads", "num_attention_heads n_head"),
            keys.Size("feedforward.d_ff", "intermediate_size n_inner"),
            *entries,
            keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, activation),
            keys.Value("embedding.n_types", "type_vocab_size", types),
            keys.Value("dropout", "hidden_dropout_prob", dropout),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Value(
                "head.dropout",
                "classifier_dropout",
                lambda s: s.get("hidden_dropout_prob", dropout),
            ),
            keys.Ignored(RELICS),
        ),
    )


EPS = "norm.eps embedding.norm.eps head.transform.norm.eps"


def _body(theirs: str, layers: str, norm: str, parts: Mapping[str, str]) -> dict[str, str]:
    """The names of the embeddings and layers."""
    return {
        "embed.tokens": f"{theirs}.embeddings.word_embeddings",
        "embed.types": f"{theirs}.embeddings.token_type_embeddings",
        "embed.norm": f"{theirs}.{norm}",
        **within("stack.blocks.*", f"{theirs}.encoder.{layers}.*", parts),
    }


def _heads(theirs: str, transform: str, norm: str) -> dict[type, dict[str, str]]:
    """The names of heads: `transform` before the scores of tokens, and a pooler before classes."""
    return {
        TokenHeadConfig: {"transform.proj": f"{transform}.dense", "transform.norm": norm},
        ClassificationHeadConfig: {
            "transform.proj": f"{theirs}.pooler.dense",
            "proj": "classifier",
        },
        TaggingHeadConfig: {"proj": "classifier"},
        PoolerHeadConfig: {"proj": f"{theirs}.pooler.dense"},
    }


def _up_gate(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of a matrix with the product without activation first, then the gate."""
    for i in range(spec.model.n_layers):
        feedforward = spec.model.layer(i).feedforward
        d_ff = getattr(feedforward, "d_ff", None) or 8 * spec.model.d_model // 3
        names = tuple(f"stack.blocks.{i}.feedforward.{part}_proj.weight" for part in ("up", "gate"))
        yield Concatenated(names, f"gte.encoder.layer.{i}.mlp.up_gate_proj.weight", (d_ff, d_ff))


def _untied(theirs: str) -> Callable[[ModelSpec], Iterator[TensorMap]]:
    return lambda spec: untied_scores(spec, theirs)


JINA_PARTS = (
    AttentionConfig(n_heads=1),
    FeedForwardConfig(),
    MAX_LEN,
    keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.1),
    keys.Value(EPS, "layer_norm_eps", 1e-5),
)
"""The parts of Jina v3, and their keys."""

JINA_V3 = like_roberta(
    "roberta",
    model_type="jina_embeddings_v3",
    config=rotary_table(EncoderHeads("JinaEmbeddingsV3", HEADS), *JINA_PARTS, _rotary(20_000.0)),
    names={
        **_body(
            "roberta",
            "layers",
            "emb_ln",
            {
                "attention.out_proj": "mixer.out_proj",
                "attention_residual.norm": "norm1",
                "feedforward.up_proj": "mlp.fc1",
                "feedforward.down_proj": "mlp.fc2",
                "feedforward_residual.norm": "norm2",
            },
        ),
    },
    others=fused(concatenated_qkv("roberta.encoder.layers.*.mixer.Wqkv"), _untied("lm_head")),
)
"""Sturua et al. 2024, without the adapters of its tasks: XLM-RoBERTa with rotary positions."""

GTE_PARTS = (
    AttentionConfig(n_heads=1),
    GatedFeedForwardConfig(out_bias=True),
    MAX_LEN,
    keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.0),
    keys.Value("feedforward.dropout", "hidden_dropout_prob", 0.1),
    keys.Value(EPS, "layer_norm_eps", 1e-12),
    # Of the code that the first folders bring along.
    keys.Fixed("layer_norm_type", "layer_norm"),
    keys.Fixed("position_embedding_type", "rope"),
    keys.Fixed("logn_attention_scale logn_attention_clip1", False),
    keys.Fixed("pack_qkv", True),
    keys.Ignored("unpad_inputs use_memory_efficient_attention"),
)
"""The parts of GTE, and their keys."""

GTE = Family(
    model_type="gte",
    config=rotary_table(EncoderHeads("Gte", WITHOUT_POOLER), *GTE_PARTS, _rotary(160_000.0)),
    names={
        **_body(
            "gte",
            "layer",
            "embeddings.LayerNorm",
            {
                "attention.out_proj": "attention.o_proj",
                "attention_residual.norm": "attn_ln",
                "feedforward.down_proj": "mlp.down_proj",
                "feedforward_residual.norm": "mlp_ln",
            },
        ),
        "head": "lm_head.decoder",
    },
    heads=_heads("gte", "lm_head", "lm_head.norm"),
    others=fused(concatenated_qkv("gte.encoder.layer.*.attention.qkv_proj"), _up_gate),
    prefix="gte.",
    renames=((r"^new\.", "gte."),),
    left_aside=(r"(gte\.)?pooler",),
    ties=(("lm_head.decoder.weight", "gte.embeddings.word_embeddings.weight"),),
)
"""Zhang et al. 2024 (mGTE): a gate in the feed-forward, whose last map alone has a bias."""

NOMIC_ONLY = (
    keys.Fixed("qkv_proj_bias mlp_fc1_bias mlp_fc2_bias prenorm parallel_block causal", False),
    keys.Fixed("rotary_emb_interleaved use_rms_norm scale_attn_by_inverse_layer_idx", False),
    keys.Fixed("rotary_emb_scale_base rotary_scaling_factor", None),
    keys.Fixed("rotary_emb_fraction", 1.0),
    keys.Fixed("scale_attn_weights", True),
    keys.Fixed("activation_function", "swiglu"),
    keys.Ignored(
        """
        attn_pdrop dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln
        max_trained_positions pad_vocab_size_multiple parallel_block_tied_norm
        reorder_and_upcast_attn resid_pdrop summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy
        """
    ),
)
"""The keys of the published files, in which `transformers` has other names."""


def _nomic_head(settings: Settings) -> int:
    d_model = settings.required_int("hidden_size", "n_embd")
    return d_model // settings.required_int("num_attention_heads", "n_head")


def _nomic_eps(settings: Settings) -> float:
    return settings.get("layer_norm_epsilon", 1e-12)


NOMIC_BERT = Family(
    model_type="nomic_bert",
    config=replace(
        rotary_table(
            EncoderHeads("NomicBert", WITHOUT_POOLER),
            AttentionConfig(n_heads=1, bias=False),
            GatedFeedForwardConfig(),
            keys.Size("max_len", "max_position_embeddings n_positions"),
            _rotary(1000.0, "rotary_emb_base"),
            keys.Size("attention.d_head", "head_dim", _nomic_head),
            keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.0),
            keys.Value(EPS, "layer_norm_eps", _nomic_eps),
            *NOMIC_ONLY,
            activation="silu",
            types=2,
            dropout=0.0,
        ),
        simplify=like_feedforward,
    ),
    names={
        **_body(
            "nomic_bert",
            "layers",
            "emb_ln",
            {
                "attention.out_proj": "attn.out_proj",
                "attention_residual.norm": "norm1",
                "feedforward.up_proj": "mlp.fc11",
                "feedforward.gate_proj": "mlp.fc12",
                "feedforward.down_proj": "mlp.fc2",
                "feedforward_residual.norm": "norm2",
            },
        ),
        "head": "cls.predictions",
    },
    heads=_heads("nomic_bert", "cls.predictions.transform", "cls.predictions.transform.layer_norm"),
    others=fused(
        concatenated_qkv("nomic_bert.encoder.layers.*.attn.Wqkv"), _untied("cls.predictions")
    ),
    prefix="nomic_bert.",
    left_aside=(r"(nomic_bert\.)?pooler",),
    ties=(
        ("cls.predictions.decoder.weight", "nomic_bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)
"""Nussbaum et al. 2024: a gate in the feed-forward, no biases but those of norms and heads."""
