"""BERT and its relatives RoBERTa and DistilBERT: learned positions, post-norm."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from addnorm.convert.core import keys
from addnorm.convert.core.family import NO_PADDING, Family, ModelSpec
from addnorm.convert.core.maps import Duplicated, Renamed, SkipRows, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    ENDINGS,
    EncoderHeads,
    Task,
    like_feedforward,
    without_pooler,
)
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

RELICS = """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
"""
"""Keys in the first converted files that no library uses."""

BERT_MODEL = EncoderConfig(
    position=LearnedConfig(),
    attention=AttentionConfig(n_heads=1),
    embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig()),
    init="bert",
)

HEADS: dict[Task, HeadConfig] = {
    "tokens": TokenHeadConfig(
        bias=True, transform=TransformConfig(activation="gelu", norm=LayerNormConfig())
    ),
    "sequence": ClassificationHeadConfig(
        pooling="first", transform=TransformConfig(activation="tanh")
    ),
    "tags": TaggingHeadConfig(),
    "spans": SpanHeadConfig(),
    "body": PoolerHeadConfig(),
}

BERT_KEYS: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    *keys.SIZES,
    keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.1),
    keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
    keys.Value("norm.eps embedding.norm.eps head.transform.norm.eps", "layer_norm_eps", 1e-12),
    keys.Size("embedding.n_types", "type_vocab_size", 2),
    keys.Value("dropout", "hidden_dropout_prob", 0.1),
    keys.Value("head.tied", "tie_word_embeddings", True),
    keys.Value("head.dropout", "classifier_dropout", lambda s: s.get("hidden_dropout_prob", 0.1)),
    keys.Fixed("position_embedding_type", "absolute", written=True),
    keys.Fixed("is_decoder add_cross_attention", False),
    keys.Ignored(RELICS),
)
"""The keys shared by BERT and RoBERTa."""


ATTENTION = {
    "q_proj": "self.query",
    "k_proj": "self.key",
    "v_proj": "self.value",
    "out_proj": "output.dense",
}


def body_names(
    theirs: str, attention: Mapping[str, str] = ATTENTION, norm: str = "output.LayerNorm"
) -> dict[str, str]:
    """The names of embeddings and layers; names inside `attention` and its `norm` follow theirs."""
    return {
        "embed.tokens": f"{theirs}.embeddings.word_embeddings",
        "embed.position.table": f"{theirs}.embeddings.position_embeddings",
        "embed.types": f"{theirs}.embeddings.token_type_embeddings",
        "embed.norm": f"{theirs}.embeddings.LayerNorm",
        **within(
            "stack.blocks.*",
            f"{theirs}.encoder.layer.*",
            {
                **within("attention", "attention", attention),
                "attention_residual.norm": f"attention.{norm}",
                "feedforward.up_proj": "intermediate.dense",
                "feedforward.down_proj": "output.dense",
                "feedforward_residual.norm": "output.LayerNorm",
            },
        ),
    }


def untied_scores(spec: ModelSpec, theirs: str) -> Iterator[TensorMap]:
    """The maps of an untied token head, whose bias is stored twice."""
    if isinstance(spec.model.head, TokenHeadConfig) and not spec.model.head.tied:
        yield Renamed("head.weight", f"{theirs}.decoder.weight")
        yield Duplicated("head.bias", f"{theirs}.decoder.bias", f"{theirs}.bias")


RENAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
"""Tensor names in the first files."""

OTHER_HEADS: dict[type, dict[str, str]] = {
    TaggingHeadConfig: {"proj": "classifier"},
    SpanHeadConfig: {"proj": "qa_outputs"},
}
"""The names of heads that are alike in every family."""


def like_bert(
    theirs: str, scores: str = "cls.predictions", transform: str = "", pooler: str = "", **own: Any
) -> Family:
    """A family with the heads of BERT, whose body is called `theirs`.

    `scores` are the scores of tokens, after a `transform`; classes are read after a `pooler`. `own`
    are the fields of a `Family` that it has for itself; its `names` are those of the body.
    """
    transform, pooler = transform or f"{scores}.transform", pooler or f"{theirs}.pooler.dense"
    names = {**own.pop("names"), "head": scores}
    others = own.pop("others", lambda spec: ())
    return Family(
        names=names,
        heads={
            TokenHeadConfig: {
                "transform.proj": f"{transform}.dense",
                "transform.norm": f"{transform}.LayerNorm",
            },
            ClassificationHeadConfig: {"transform.proj": pooler, "proj": "classifier"},
            PoolerHeadConfig: {"proj": pooler},
            **OTHER_HEADS,
        },
        others=lambda spec: (*others(spec), *untied_scores(spec, scores)),
        prefix=f"{theirs}.",
        renames=RENAMES,
        ties=(
            (f"{scores}.decoder.weight", f"{theirs}.embeddings.word_embeddings.weight"),
            (f"{scores}.decoder.bias", f"{scores}.bias"),
        ),
        **own,
    )


BERT = like_bert(
    "bert",
    model_type="bert",
    config=keys.ConfigTable(
        BERT_MODEL,
        (
            EncoderHeads("Bert", HEADS, {**ENDINGS, "ForPreTraining": "tokens"}),
            keys.Size("max_len", "max_position_embeddings"),
            *BERT_KEYS,
        ),
        simplify=like_feedforward,
    ),
    names=body_names("bert"),
    ignored=(r"(bert\.)?embeddings\.position_ids",),
    left_aside=(r"(bert\.)?pooler", r"cls\.seq_relationship"),
    refine_by_names=without_pooler,
)
"""Devlin et al. 2019. Pre-training heads that the model lacks are ignored."""


# RoBERTa, whose positions begin after that of padding.

PAD = 1
"""The usual token of padding, and the row of the position table that stands for it."""


def _first_row(spec: ModelSpec) -> int:
    """The table row of the first position, after the one for padding."""
    if spec.pad_id == NO_PADDING:
        raise InputError(
            "roberta's positions begin after the padding token, and the tokenizer has none"
        )
    return (PAD if spec.pad_id is None else spec.pad_id) + 1


def _read_positions(settings: Settings) -> keys.Fields:
    pad = settings.get("pad_token_id", PAD)
    if pad < 0:
        raise settings.refuse("pad_token_id", "positions begin after the row of that number")
    return {"max_len": settings.required_int("max_position_embeddings") - pad - 1, "pad_id": pad}


def _write_positions(spec: ModelSpec) -> Json:
    first_row = _first_row(spec)
    return {
        "max_position_embeddings": spec.model.max_len + first_row,
        "pad_token_id": first_row - 1,
    }


def _roberta_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    table = "roberta.embeddings.position_embeddings.weight"
    yield SkipRows("embed.position.table.weight", table, _first_row(spec))
    yield from untied_scores(spec, "lm_head")


def like_roberta(theirs: str, **own: Any) -> Family:
    """A family with RoBERTa's heads, whose body has the name `theirs`.

    `own` are the fields of a `Family` that it has for itself; its `names` are those of the body.
    """
    names = {**own.pop("names"), "head": "lm_head"}
    return Family(
        names=names,
        heads={
            TokenHeadConfig: {
                "transform.proj": "lm_head.dense",
                "transform.norm": "lm_head.layer_norm",
            },
            ClassificationHeadConfig: {
                "transform.proj": "classifier.dense",
                "proj": "classifier.out_proj",
            },
            PoolerHeadConfig: {"proj": f"{theirs}.pooler.dense"},
            **OTHER_HEADS,
        },
        prefix=f"{theirs}.",
        renames=RENAMES,
        ignored=(rf"({theirs}\.)?embeddings\.position_ids",),
        left_aside=(rf"({theirs}\.)?pooler",),
        ties=(
            ("lm_head.decoder.weight", f"{theirs}.embeddings.word_embeddings.weight"),
            ("lm_head.decoder.bias", "lm_head.bias"),
        ),
        refine_by_names=without_pooler,
        **own,
    )


def _roberta(model_type: str, stem: str) -> Family:
    """RoBERTa under one of its names; the token head's activation is always GELU."""
    positions = keys.Computed(_read_positions, _write_positions)
    return like_roberta(
        "roberta",
        model_type=model_type,
        config=keys.ConfigTable(BERT_MODEL, (EncoderHeads(stem, HEADS), positions, *BERT_KEYS)),
        names=body_names("roberta"),
        others=_roberta_tensors,
    )


ROBERTA = _roberta("roberta", "Roberta")
"""Liu et al. 2019."""

XLM_ROBERTA = _roberta("xlm-roberta", "XLMRoberta")
"""Conneau et al. 2020: RoBERTa in a hundred languages."""

CAMEMBERT = _roberta("camembert", "Camembert")
"""Martin et al. 2020: RoBERTa in French."""


# DistilBERT: half of the layers, without token types and pooler.

NORM = LayerNormConfig(eps=1e-12)
"""DistilBERT's norm everywhere, which is not configurable."""

DISTILBERT_HEADS = EncoderHeads(
    "DistilBert",
    {
        "tokens": TokenHeadConfig(
            bias=True, transform=TransformConfig(activation="gelu", norm=NORM)
        ),
        "sequence": ClassificationHeadConfig(
            pooling="first", transform=TransformConfig(activation="relu")
        ),
        "tags": TaggingHeadConfig(),
        "spans": SpanHeadConfig(),
        "body": HiddenHeadConfig(),
    },
)


def _simplified(model: ModelConfig) -> ModelConfig:
    """The model with the body's dropout in a tagging head, or its activation in a token head."""
    if isinstance(model.head, TaggingHeadConfig):
        return replace(model, head=replace(model.head, dropout=model.dropout))
    return like_feedforward(model)


DISTILBERT = Family(
    model_type="distilbert",
    config=keys.ConfigTable(
        EncoderConfig(
            position=LearnedConfig(),
            attention=AttentionConfig(n_heads=1),
            norm=NORM,
            embedding=EmbeddingConfig(scale="one", norm=NORM),
            init="bert",
        ),
        (
            DISTILBERT_HEADS,
            keys.VOCABULARY,
            keys.Size("d_model", "dim hidden_size"),
            keys.Size("n_layers", "n_layers num_hidden_layers"),
            keys.Size("max_len", "max_position_embeddings"),
            keys.Size("attention.n_heads", "n_heads num_attention_heads"),
            keys.Value("attention.dropout", "attention_dropout", 0.1),
            keys.Size("feedforward.d_ff", "hidden_dim"),
            keys.Choice("feedforward.activation", "activation", keys.ACTIVATIONS, "gelu"),
            keys.Value("dropout", "dropout", 0.1),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Value("head.dropout", "seq_classif_dropout", 0.2),
            # Sinusoidal positions are stored as a table too; they differ only in training.
            keys.Fixed("sinusoidal_pos_embds", False, (True,), written=True),
            keys.Fixed("is_decoder", False),
            keys.Ignored("tie_weights_ qa_dropout"),
        ),
        simplify=_simplified,
    ),
    names={
        "embed.tokens": "distilbert.embeddings.word_embeddings",
        "embed.position.table": "distilbert.embeddings.position_embeddings",
        "embed.norm": "distilbert.embeddings.LayerNorm",
        "head": "vocab_projector",
        **within(
            "stack.blocks.*",
            "distilbert.transformer.layer.*",
            {
                "attention.q_proj": "attention.q_lin",
                "attention.k_proj": "attention.k_lin",
                "attention.v_proj": "attention.v_lin",
                "attention.out_proj": "attention.out_lin",
                "attention_residual.norm": "sa_layer_norm",
                "feedforward.up_proj": "ffn.lin1",
                "feedforward.down_proj": "ffn.lin2",
                "feedforward_residual.norm": "output_layer_norm",
            },
        ),
    },
    heads={
        TokenHeadConfig: {
            "transform.proj": "vocab_transform",
            "transform.norm": "vocab_layer_norm",
        },
        ClassificationHeadConfig: {"transform.proj": "pre_classifier", "proj": "classifier"},
        **OTHER_HEADS,
    },
    prefix="distilbert.",
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
    ties=(("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
)
"""Sanh et al. 2019."""
