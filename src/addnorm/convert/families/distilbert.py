"""DistilBERT: half of BERT's layers, without token types and pooler."""

from collections.abc import Iterator

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, encoder, layers, mlp_of
from addnorm.convert.core.maps import Renamed, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    Task,
    architecture,
    label_keys,
    labels_for,
    problem_of,
    task_of,
)
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

NORM = LayerNormConfig(eps=1e-12)
"""The norm that is used everywhere; it is not configurable."""


def _read(settings: Settings) -> ModelSpec:
    # Sinusoidal positions are stored as a table too; they differ only in training.
    settings.get("sinusoidal_pos_embds", False)
    settings.get("tie_weights_", True)
    settings.get("qa_dropout", 0.1)
    settings.expect("is_decoder", False)
    task = task_of(settings, "DistilBert")
    model = EncoderConfig(
        d_model=settings.required_int("dim", "hidden_size"),
        n_layers=settings.required_int("n_layers", "num_hidden_layers"),
        max_len=settings.required_int("max_position_embeddings"),
        position=LearnedConfig(),
        attention=AttentionConfig(
            n_heads=settings.required_int("n_heads", "num_attention_heads"),
            dropout=settings.get("attention_dropout", 0.1),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.required_int("hidden_dim"),
            activation=activation_of(settings, "activation", "gelu"),
        ),
        norm=NORM,
        embedding=EmbeddingConfig(scale="one", norm=NORM),
        head=_head(settings, task),
        dropout=settings.get("dropout", 0.1),
        init="bert",
    )
    return ModelSpec(
        model=model,
        vocab_size=settings.required_int("vocab_size"),
        labels=labels_for(settings, task),
    )


def _head(settings: Settings, task: Task) -> HeadConfig:
    tied = settings.get("tie_word_embeddings", True)
    dropout = settings.get("seq_classif_dropout", 0.2)
    match task:
        case "tokens":
            activation = activation_of(settings, "activation", "gelu")
            transform = TransformConfig(activation=activation, norm=NORM)
            return TokenHeadConfig(tied=tied, bias=True, transform=transform)
        case "sequence":
            return ClassificationHeadConfig(
                problem=problem_of(settings),
                pooling="first",
                transform=TransformConfig(activation="relu"),
                dropout=dropout,
            )
        case "tags":
            return TaggingHeadConfig(dropout=settings.get("dropout", 0.1))
        case "body":
            return HiddenHeadConfig()


def _write(spec: ModelSpec) -> Json:
    model = encoder(spec)
    attention, feedforward = attention_of(model), mlp_of(model)
    tree: Json = {
        "model_type": "distilbert",
        "architectures": [architecture(model.head, "DistilBert")],
        "vocab_size": spec.vocab_size,
        "dim": model.d_model,
        "n_layers": model.n_layers,
        "n_heads": attention.n_heads,
        "hidden_dim": feedforward.d_ff or 4 * model.d_model,
        "activation": activation_name(feedforward.activation),
        "dropout": model.dropout,
        "attention_dropout": attention.dropout,
        "max_position_embeddings": model.max_len,
        "sinusoidal_pos_embds": False,
    }
    if isinstance(model.head, TokenHeadConfig):
        tree["tie_word_embeddings"] = model.head.tied
    if isinstance(model.head, ClassificationHeadConfig):
        tree["seq_classif_dropout"] = model.head.dropout
    return tree | (label_keys(spec.labels, model.head) if spec.labels else {})


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model, theirs = encoder(spec), "distilbert.embeddings"
    yield Renamed("embed.tokens.weight", f"{theirs}.word_embeddings.weight")
    yield Renamed("embed.position.table.weight", f"{theirs}.position_embeddings.weight")
    yield from weight_and_bias("embed.norm", f"{theirs}.LayerNorm")
    yield from layers(model.n_layers, _layer)
    match model.head:
        case TokenHeadConfig() as head:
            yield from weight_and_bias("head.transform.proj", "vocab_transform")
            yield from weight_and_bias("head.transform.norm", "vocab_layer_norm")
            yield Renamed("head.bias", "vocab_projector.bias")
            if not head.tied:
                yield Renamed("head.weight", "vocab_projector.weight")
        case ClassificationHeadConfig():
            yield from weight_and_bias("head.transform.proj", "pre_classifier")
            yield from weight_and_bias("head.proj", "classifier")
        case TaggingHeadConfig():
            yield from weight_and_bias("head.proj", "classifier")
        case _:
            pass


def _layer(i: int) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"distilbert.transformer.layer.{i}"
    for part in ("q", "k", "v", "out"):
        yield from weight_and_bias(
            f"{ours}.attention.{part}_proj", f"{theirs}.attention.{part}_lin"
        )
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.sa_layer_norm")
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.ffn.lin1")
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.ffn.lin2")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.output_layer_norm")


DISTILBERT = Family(
    model_types=("distilbert",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="distilbert.",
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
    ties=(("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
)
"""Sanh et al. 2019."""
