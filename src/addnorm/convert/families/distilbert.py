"""DistilBERT: half of BERT's layers, without token types and pooler."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, layers
from addnorm.convert.core.maps import Renamed, TensorMap, renamed, weight_and_bias
from addnorm.convert.core.tasks import (
    EncoderHeads,
    HeadNames,
    head_maps,
    head_weights,
    like_feedforward,
)
from addnorm.models import EncoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

NORM = LayerNormConfig(eps=1e-12)
"""The norm that is used everywhere; it is not configurable."""

HEADS = EncoderHeads(
    "DistilBert",
    {
        "tokens": TokenHeadConfig(
            bias=True, transform=TransformConfig(activation="gelu", norm=NORM)
        ),
        "sequence": ClassificationHeadConfig(
            pooling="first", transform=TransformConfig(activation="relu")
        ),
        "tags": TaggingHeadConfig(),
        "body": HiddenHeadConfig(),
    },
)


def _simplified(model: ModelConfig) -> ModelConfig:
    """The model with the dropout of its body before the tags, and its activation before tokens."""
    if isinstance(model.head, TaggingHeadConfig):
        return replace(model, head=replace(model.head, dropout=model.dropout))
    return like_feedforward(model)


TABLE = keys.ConfigTable(
    EncoderConfig(
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=1),
        norm=NORM,
        embedding=EmbeddingConfig(scale="one", norm=NORM),
        init="bert",
    ),
    (
        HEADS,
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
)


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model, theirs = spec.model, "distilbert.embeddings"
    yield Renamed("embed.tokens.weight", f"{theirs}.word_embeddings.weight")
    yield Renamed("embed.position.table.weight", f"{theirs}.position_embeddings.weight")
    yield from weight_and_bias("embed.norm", f"{theirs}.LayerNorm")
    blocks = "distilbert.transformer.layer"
    yield from layers(
        model.n_layers, lambda i: renamed(f"stack.blocks.{i}", f"{blocks}.{i}", LAYER)
    )
    yield from head_maps(model.head, HEAD_NAMES)
    if isinstance(model.head, TokenHeadConfig):
        yield Renamed("head.bias", "vocab_projector.bias")
        yield from head_weights(model, "vocab_projector.weight")


HEAD_NAMES: HeadNames = {
    TokenHeadConfig: {"transform.proj": "vocab_transform", "transform.norm": "vocab_layer_norm"},
    ClassificationHeadConfig: {"transform.proj": "pre_classifier", "proj": "classifier"},
    TaggingHeadConfig: {"proj": "classifier"},
}

LAYER = {
    **{f"attention.{part}_proj": f"attention.{part}_lin" for part in ("q", "k", "v", "out")},
    "attention_residual.norm": "sa_layer_norm",
    "feedforward.up_proj": "ffn.lin1",
    "feedforward.down_proj": "ffn.lin2",
    "feedforward_residual.norm": "output_layer_norm",
}

DISTILBERT = Family(
    model_types=("distilbert",),
    read=TABLE.read,
    write=TABLE.write,
    maps=_maps,
    prefix="distilbert.",
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
    ties=(("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
)
"""Sanh et al. 2019."""
