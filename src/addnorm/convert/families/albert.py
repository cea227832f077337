"""ALBERT: BERT with a narrow table of tokens, whose layers share their weights."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import ModelSpec, embedding_of
from addnorm.convert.core.maps import Renamed, TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    ENDINGS,
    EncoderHeads,
    like_feedforward,
    without_pooler,
)
from addnorm.convert.families.bert import BERT_MODEL, HEADS, body_names, like_bert
from addnorm.convert.families.electra import scores_tokens
from addnorm.nn.blocks import first_layer
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.norms import LayerNormConfig

LAYER = {
    "attention.q_proj": "attention.query",
    "attention.k_proj": "attention.key",
    "attention.v_proj": "attention.value",
    "attention.out_proj": "attention.dense",
    "attention_residual.norm": "attention.LayerNorm",
    "feedforward.up_proj": "ffn",
    "feedforward.down_proj": "ffn_output",
    "feedforward_residual.norm": "full_layer_layer_norm",
}
"""The names of the parts of a layer."""


def _read_groups(settings: Settings) -> keys.Fields:
    n_layers, n = settings.required_int("num_hidden_layers"), settings.get("num_hidden_groups", 1)
    if not 1 <= n <= n_layers:
        raise settings.refuse("num_hidden_groups", f"it must be from 1 to {n_layers}, the layers")
    return {"n_distinct_layers": None if n == n_layers else n}


def _n_groups(spec: ModelSpec) -> int:
    return spec.model.n_distinct_layers or spec.model.n_layers


def _read_width(settings: Settings) -> keys.Fields:
    width = settings.optional_int("embedding_size", missing=128) or 128
    narrow = width != settings.required_int("hidden_size")
    narrow = narrow and scores_tokens(settings, "ForPreTraining")
    return {"embedding.d_embed": width, "head.transform.d_out": width if narrow else None}


def _write_width(spec: ModelSpec) -> Json:
    return {"embedding_size": embedding_of(spec.model).width(spec.model.d_model)}


def _tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of each layer group's tensors, through the group's first layer."""
    for group in range(_n_groups(spec)):
        first = first_layer(group, spec.model.n_layers, _n_groups(spec))
        for ours, theirs in LAYER.items():
            for kind in ("weight", "bias"):
                yield Renamed(
                    f"stack.blocks.{first}.{ours}.{kind}",
                    f"albert.encoder.albert_layer_groups.{group}.albert_layers.0.{theirs}.{kind}",
                )


MAPPED = EmbeddingConfig(
    scale="one", norm=LayerNormConfig(), d_embed=BERT_MODEL.d_model, map="last"
)

ALBERT = like_bert(
    "albert",
    scores="predictions",
    transform="predictions",
    pooler="albert.pooler",
    model_type="albert",
    config=keys.ConfigTable(
        replace(BERT_MODEL, embedding=MAPPED),
        (
            EncoderHeads("Albert", HEADS, {**ENDINGS, "ForPreTraining": "tokens"}),
            keys.VOCABULARY,
            *keys.SIZES,
            keys.Computed(_read_groups, lambda spec: {"num_hidden_groups": _n_groups(spec)}),
            keys.Computed(_read_width, _write_width),
            keys.Size("max_len", "max_position_embeddings"),
            keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.0),
            keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu_new"),
            keys.Value(
                "norm.eps embedding.norm.eps head.transform.norm.eps", "layer_norm_eps", 1e-12
            ),
            keys.Size("embedding.n_types", "type_vocab_size", 2),
            keys.Value("dropout", "hidden_dropout_prob", 0.0),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Value("head.dropout", "classifier_dropout_prob", 0.1),
            # Several layers in a group, which no published model has.
            keys.Fixed("inner_group_num", 1),
            keys.Fixed("position_embedding_type", "absolute"),
            keys.Ignored(
                "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks"
            ),
        ),
        simplify=like_feedforward,
    ),
    names={
        **body_names("albert"),
        "embed.proj_last": "albert.encoder.embedding_hidden_mapping_in",
    },
    others=_tensors,
    ignored=(r"(albert\.)?embeddings\.position_ids",),
    left_aside=(r"(albert\.)?pooler", r"sop_classifier"),
    refine_by_names=without_pooler,
)
"""Lan et al. 2020. The head for the order of sentences is left out."""
