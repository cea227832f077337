"""BERT: learned positions and token types, post-norm; shared with RoBERTa."""

from collections.abc import Iterator

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import (
    Family,
    ModelSpec,
    attention_of,
    encoder,
    eps_of,
    layers,
    mlp_of,
)
from addnorm.convert.core.known import embedding_of
from addnorm.convert.core.maps import Duplicated, Renamed, SkipRows, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    ENDINGS,
    Task,
    architecture,
    label_keys,
    labels_for,
    problem_of,
    task_of,
    without_pooler,
)
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

RELICS = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
"""Keys in the first converted files that no library uses."""


def _read(settings: Settings) -> ModelSpec:
    task = task_of(settings, "Bert", {**ENDINGS, "ForPreTraining": "tokens"})
    activation = activation_of(settings, "hidden_act", "gelu")
    transform = TransformConfig(activation=activation, norm=norm_of(settings))
    model = body_of(settings, head_of(settings, task, transform))
    return ModelSpec(
        model=model,
        vocab_size=settings.required_int("vocab_size"),
        labels=labels_for(settings, task),
    )


def body_of(settings: Settings, head: HeadConfig, *, first_row: int = 0) -> EncoderConfig:
    """The encoder with a head; positions begin at row `first_row` of their table."""
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("position_embedding_type", "absolute")
    for key in RELICS:
        settings.get(key, settings.tree.get(key) or "")
    norm = norm_of(settings)
    return EncoderConfig(
        d_model=settings.required_int("hidden_size"),
        n_layers=settings.required_int("num_hidden_layers"),
        max_len=settings.required_int("max_position_embeddings") - first_row,
        position=LearnedConfig(),
        attention=AttentionConfig(
            n_heads=settings.required_int("num_attention_heads"),
            dropout=settings.get("attention_probs_dropout_prob", 0.1),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.required_int("intermediate_size"),
            activation=activation_of(settings, "hidden_act", "gelu"),
        ),
        norm=norm,
        embedding=EmbeddingConfig(
            scale="one", norm=norm, n_types=settings.optional_int("type_vocab_size") or 2
        ),
        head=head,
        dropout=settings.get("hidden_dropout_prob", 0.1),
        init="bert",
    )


def head_of(settings: Settings, task: Task, transform: TransformConfig) -> HeadConfig:
    """The head of a task; `transform` precedes the token logits."""
    tied = settings.get("tie_word_embeddings", True)
    dropout = settings.optional_float("classifier_dropout")
    dropout = settings.get("hidden_dropout_prob", 0.1) if dropout is None else dropout
    match task:
        case "tokens":
            return TokenHeadConfig(tied=tied, bias=True, transform=transform)
        case "sequence":
            return ClassificationHeadConfig(
                problem=problem_of(settings),
                pooling="first",
                transform=TransformConfig(activation="tanh"),
                dropout=dropout,
            )
        case "tags":
            return TaggingHeadConfig(dropout=dropout)
        case "body":
            return PoolerHeadConfig()


def norm_of(settings: Settings) -> LayerNormConfig:
    """The norm that is used everywhere."""
    return LayerNormConfig(eps=settings.get("layer_norm_eps", 1e-12))


def _write(spec: ModelSpec) -> Json:
    return settings_of(spec, "Bert") | {"model_type": "bert"}


def settings_of(spec: ModelSpec, stem: str, *, first_row: int = 0) -> Json:
    """The config keys shared by BERT and RoBERTa."""
    model = encoder(spec)
    attention, feedforward = attention_of(model), mlp_of(model)
    tree: Json = {
        "architectures": [architecture(model.head, stem)],
        "vocab_size": spec.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "intermediate_size": feedforward.d_ff or 4 * model.d_model,
        "hidden_act": activation_name(feedforward.activation),
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "max_position_embeddings": model.max_len + first_row,
        "type_vocab_size": embedding_of(model).n_types,
        "layer_norm_eps": eps_of(model.norm, 1e-12),
        "position_embedding_type": "absolute",
    }
    if isinstance(model.head, TokenHeadConfig):
        tree["tie_word_embeddings"] = model.head.tied
    if isinstance(model.head, ClassificationHeadConfig | TaggingHeadConfig):
        tree |= {"classifier_dropout": model.head.dropout, **label_keys(spec.labels, model.head)}
    return tree


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder(spec)
    yield from body_maps(model, "bert")
    match model.head:
        case TokenHeadConfig() as head:
            transform = "cls.predictions.transform"
            yield from weight_and_bias("head.transform.proj", f"{transform}.dense")
            yield from weight_and_bias("head.transform.norm", f"{transform}.LayerNorm")
            yield from scores("cls.predictions", tied=head.tied)
        case ClassificationHeadConfig():
            yield from weight_and_bias("head.transform.proj", "bert.pooler.dense")
            yield from weight_and_bias("head.proj", "classifier")
        case TaggingHeadConfig():
            yield from weight_and_bias("head.proj", "classifier")
        case PoolerHeadConfig():
            yield from weight_and_bias("head.proj", "bert.pooler.dense")
        case _:
            pass


def scores(theirs: str, *, tied: bool) -> Iterator[TensorMap]:
    """The token head; its bias is stored outside the decoder, and also inside if it is untied."""
    if tied:
        yield Renamed("head.bias", f"{theirs}.bias")
    else:
        yield Renamed("head.weight", f"{theirs}.decoder.weight")
        yield Duplicated("head.bias", f"{theirs}.decoder.bias", f"{theirs}.bias")


def body_maps(model: EncoderConfig, theirs: str, *, first_row: int = 0) -> Iterator[TensorMap]:
    """The maps of embeddings and layers."""
    table, rows = "embed.position.table.weight", f"{theirs}.embeddings.position_embeddings.weight"
    yield Renamed("embed.tokens.weight", f"{theirs}.embeddings.word_embeddings.weight")
    yield SkipRows(table, rows, first_row) if first_row else Renamed(table, rows)
    yield Renamed("embed.types.weight", f"{theirs}.embeddings.token_type_embeddings.weight")
    yield from weight_and_bias("embed.norm", f"{theirs}.embeddings.LayerNorm")
    yield from layers(model.n_layers, lambda i: _layer(i, f"{theirs}.encoder.layer.{i}"))


def _layer(i: int, theirs: str) -> Iterator[TensorMap]:
    ours = f"stack.blocks.{i}"
    for part, name in {"q": "query", "k": "key", "v": "value"}.items():
        yield from weight_and_bias(
            f"{ours}.attention.{part}_proj", f"{theirs}.attention.self.{name}"
        )
    yield from weight_and_bias(f"{ours}.attention.out_proj", f"{theirs}.attention.output.dense")
    yield from weight_and_bias(
        f"{ours}.attention_residual.norm", f"{theirs}.attention.output.LayerNorm"
    )
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.intermediate.dense")
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.output.dense")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.output.LayerNorm")


RENAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
"""Tensor names in the first files."""

BERT = Family(
    model_types=("bert",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="bert.",
    renames=RENAMES,
    ignored=(
        r"(bert\.)?embeddings\.position_ids",
        r"(bert\.)?pooler\..*",
        r"cls\.seq_relationship\..*",
    ),
    ties=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    refine_by_names=without_pooler,
)
"""Devlin et al. 2019. Pre-training heads that the model lacks are ignored."""
