"""DeBERTa v2 and v3: BERT whose attention compares contents with relative positions."""

from dataclasses import replace
from typing import Any

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import MAX_LEN
from addnorm.convert.core.family import ModelSpec, embedding_of
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import EncoderHeads, like_feedforward
from addnorm.convert.families.bert import BERT_MODEL, HEADS, body_names, like_bert
from addnorm.convert.families.electra import scores_tokens
from addnorm.errors import InputError
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    TransformConfig,
)
from addnorm.nn.layer_convolution import LayerConvolutionConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import DisentangledConfig
from addnorm.nn.positions.disentangled import Terms
from addnorm.parts import kind_of

TERMS: dict[frozenset[str], Terms] = {
    frozenset({"c2p", "p2c"}): "both",
    frozenset({"c2p"}): "content_to_position",
    frozenset({"p2c"}): "position_to_content",
}
"""The products with positions by `pos_att_type`."""

FLAGS = {"relative_attention": True, "position_biased_input": False}
"""Keys with the value that they must have, and do not have by default."""


def _read_positions(settings: Settings) -> keys.Fields:
    for key, value in FLAGS.items():
        if settings.get(key, not value) is not value:
            raise settings.refuse(
                key, f"only relative positions are supported, so it must be {str(value).lower()}"
            )
    most = settings.get("max_relative_positions", -1)
    most = most if most > 0 else settings.required_int("max_position_embeddings")
    buckets = settings.get("position_buckets", -1)
    if 0 < buckets < 4 or (buckets > 0 and most <= buckets // 2 + 1):
        raise settings.refuse(
            "position_buckets",
            f"it must be from 4 to {2 * most - 4}, for distances up to {most}, or -1 for none",
        )
    norm = settings.choose("norm_rel_ebd", {"none": None, "layer_norm": LayerNormConfig()}, "none")
    return {
        "position": DisentangledConfig(
            max_distance=most,
            buckets=buckets if buckets > 0 else None,
            terms=_terms(settings),
            projections="shared" if settings.get("share_att_key", False) else "own",
            norm=norm,
        )
    }


def _terms(settings: Settings) -> Terms:
    given: Any = settings.tree.get("pos_att_type")
    settings.ignore("pos_att_type")
    names = given.lower().split("|") if isinstance(given, str) else given
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        terms = TERMS.get(frozenset(name.strip() for name in names))
        if terms is not None:
            return terms
    raise settings.refuse("pos_att_type", "it must be c2p, p2c, or both as 'c2p|p2c'")


def _write_positions(spec: ModelSpec) -> Json:
    position = spec.model.position
    if not isinstance(position, DisentangledConfig):
        raise InputError(f"this family has disentangled positions, not {kind_of(position)}")
    names = next(names for names, terms in TERMS.items() if terms == position.terms)
    return {
        **FLAGS,
        "max_relative_positions": position.max_distance,
        "position_buckets": position.buckets or -1,
        "pos_att_type": sorted(names),
        "share_att_key": position.projections == "shared",
        "norm_rel_ebd": "none" if position.norm is None else "layer_norm",
    }


def _read_width(settings: Settings) -> keys.Fields:
    """The width of the embedding table, its projection to the model, and the token head's width."""
    d_model = settings.required_int("hidden_size")
    settings.expect("pooler_hidden_size", d_model)
    width = settings.optional_int("embedding_size") or d_model
    if width == d_model:
        return {}
    if n_types := settings.get("type_vocab_size", 0):
        why = f"type_vocab_size = {n_types}, and types have the width of the model here"
        raise settings.refuse("embedding_size", why)
    return {
        "embedding.d_embed": width,
        "head.transform.d_out": width if scores_tokens(settings) else None,
    }


def _write_width(spec: ModelSpec) -> Json:
    d_model = spec.model.d_model
    width = embedding_of(spec.model).width(d_model)
    return {
        "pooler_hidden_size": d_model,
        **({} if width == d_model else {"embedding_size": width}),
    }


def _head_width(settings: Settings) -> int | None:
    """The width of a head; None if the heads do not divide the model's width."""
    d_model = settings.required_int("hidden_size")
    n_heads = settings.required_int("num_attention_heads")
    return None if d_model % n_heads else d_model // n_heads


def _read_convolution(settings: Settings) -> keys.Fields:
    """The convolution next to the first layer, in the models of 900 million parameters and more."""
    size = settings.get("conv_kernel_size", 0)
    activation = settings.choose("conv_act", keys.ACTIVATIONS, "tanh")
    settings.get("conv_groups", 1)
    if size <= 0:
        return {}
    settings.expect("conv_groups", 1)
    if size % 2 == 0:
        raise settings.refuse("conv_kernel_size", "a kernel is centred, and spans an odd number")
    return {"first_convolution": LayerConvolutionConfig(kernel_size=size, activation=activation)}


def _write_convolution(spec: ModelSpec) -> Json:
    convolution = spec.model.convolution
    if convolution is None:
        return {"conv_kernel_size": 0}
    name = keys.their_name(convolution.activation, keys.ACTIVATIONS)
    return {"conv_kernel_size": convolution.kernel_size, "conv_act": name, "conv_groups": 1}


EPS = "norm.eps embedding.norm.eps position.norm.eps head.transform.norm.eps"

DEBERTA_V2 = like_bert(
    "deberta",
    pooler="pooler.dense",
    model_type="deberta-v2",
    config=keys.ConfigTable(
        replace(BERT_MODEL, position=DisentangledConfig(norm=LayerNormConfig())),
        (
            EncoderHeads(
                "DebertaV2",
                {
                    **HEADS,
                    "body": HiddenHeadConfig(),
                    "sequence": ClassificationHeadConfig(
                        pooling="first", transform=TransformConfig(activation="gelu")
                    ),
                },
            ),
            keys.VOCABULARY,
            *keys.SIZES,
            keys.Computed(_read_positions, _write_positions),
            keys.Computed(_read_width, _write_width),
            MAX_LEN,
            keys.Size("attention.d_head", "attention_head_size", _head_width),
            keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.1),
            keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
            keys.Value(EPS, "layer_norm_eps", 1e-7),
            keys.Value("embedding.n_types", "type_vocab_size", 0),
            keys.Value("dropout", "hidden_dropout_prob", 0.1),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Value("head.dropout", "cls_dropout", lambda s: s.get("hidden_dropout_prob", 0.1)),
            keys.Choice("head.transform.activation", "pooler_hidden_act", keys.ACTIVATIONS, "gelu"),
            keys.Fixed("legacy", True),
            keys.Computed(_read_convolution, _write_convolution),
            keys.Ignored("pooler_dropout z_steps"),
        ),
        simplify=like_feedforward,
    ),
    names={
        **body_names(
            "deberta",
            {
                "q_proj": "self.query_proj",
                "k_proj": "self.key_proj",
                "v_proj": "self.value_proj",
                "out_proj": "output.dense",
                "position.q_proj": "self.pos_query_proj",
                "position.k_proj": "self.pos_key_proj",
            },
        ),
        "stack.blocks.*.convolution.conv": "deberta.encoder.conv.conv",
        "stack.blocks.*.convolution.norm": "deberta.encoder.conv.LayerNorm",
        "embed.proj": "deberta.embeddings.embed_proj",
        "embed.position.relative.table": "deberta.encoder.rel_embeddings",
        "embed.position.relative.norm": "deberta.encoder.LayerNorm",
    },
    ignored=(r"(deberta\.)?embeddings\.position_(ids|embeddings\.weight)",),
    left_aside=("lm_predictions", "mask_predictions"),
)
"""He et al. 2021 and 2023. Pre-training heads that the model lacks are ignored."""
