"""BERT: learned positions and token types, post-norm. RoBERTa: positions after that of padding."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import NO_PADDING, Family, ModelSpec, layers
from addnorm.convert.core.maps import (
    Duplicated,
    Renamed,
    SkipRows,
    TensorMap,
    renamed,
    weight_and_bias,
)
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import (
    ENDINGS,
    EncoderHeads,
    HeadNames,
    Task,
    head_maps,
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
    PoolerHeadConfig,
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
    "body": PoolerHeadConfig(),
}

BERT_KEYS: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    keys.Size("d_model", "hidden_size"),
    keys.Size("n_layers", "num_hidden_layers"),
    keys.Size("attention.n_heads", "num_attention_heads"),
    keys.Value("attention.dropout", "attention_probs_dropout_prob", 0.1),
    keys.Size("feedforward.d_ff", "intermediate_size"),
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

TABLE = keys.ConfigTable(
    BERT_MODEL,
    (
        EncoderHeads("Bert", HEADS, {**ENDINGS, "ForPreTraining": "tokens"}),
        keys.Size("max_len", "max_position_embeddings"),
        *BERT_KEYS,
    ),
    simplify=like_feedforward,
)


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    yield from body_maps(spec.model, "bert")
    yield from head_maps(spec.model.head, HEAD_NAMES)
    if isinstance(spec.model.head, TokenHeadConfig):
        yield from scores("cls.predictions", tied=spec.model.head.tied)


HEAD_NAMES: HeadNames = {
    TokenHeadConfig: {
        "transform.proj": "cls.predictions.transform.dense",
        "transform.norm": "cls.predictions.transform.LayerNorm",
    },
    ClassificationHeadConfig: {"transform.proj": "bert.pooler.dense", "proj": "classifier"},
    TaggingHeadConfig: {"proj": "classifier"},
    PoolerHeadConfig: {"proj": "bert.pooler.dense"},
}


def scores(theirs: str, *, tied: bool) -> Iterator[TensorMap]:
    """The token head; its bias is stored outside the decoder, and also inside if it is untied."""
    if tied:
        yield Renamed("head.bias", f"{theirs}.bias")
    else:
        yield Renamed("head.weight", f"{theirs}.decoder.weight")
        yield Duplicated("head.bias", f"{theirs}.decoder.bias", f"{theirs}.bias")


def body_maps(model: ModelConfig, theirs: str, *, first_row: int = 0) -> Iterator[TensorMap]:
    """The maps of embeddings and layers."""
    table, rows = "embed.position.table.weight", f"{theirs}.embeddings.position_embeddings.weight"
    yield Renamed("embed.tokens.weight", f"{theirs}.embeddings.word_embeddings.weight")
    yield SkipRows(table, rows, first_row) if first_row else Renamed(table, rows)
    yield Renamed("embed.types.weight", f"{theirs}.embeddings.token_type_embeddings.weight")
    yield from weight_and_bias("embed.norm", f"{theirs}.embeddings.LayerNorm")
    yield from layers(
        model.n_layers, lambda i: renamed(f"stack.blocks.{i}", f"{theirs}.encoder.layer.{i}", LAYER)
    )


LAYER = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_residual.norm": "attention.output.LayerNorm",
    "feedforward.up_proj": "intermediate.dense",
    "feedforward.down_proj": "output.dense",
    "feedforward_residual.norm": "output.LayerNorm",
}

RENAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
"""Tensor names in the first files."""

BERT = Family(
    model_types=("bert",),
    read=TABLE.read,
    write=TABLE.write,
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


PAD = 1
"""The usual token of padding, and the row of the position table that stands for it."""


def _first_row(spec: ModelSpec) -> int:
    """The row of the first position, which comes after that of padding."""
    if spec.pad_id == NO_PADDING:
        raise InputError("positions of roberta begin after padding, and the tokenizer has none")
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


def _roberta(model_type: str, stem: str) -> Family:
    """RoBERTa under one of its names; the activation before the scores of tokens is always GELU."""
    positions = keys.Computed(_read_positions, _write_positions)
    table = keys.ConfigTable(BERT_MODEL, (EncoderHeads(stem, HEADS), positions, *BERT_KEYS))
    return Family(
        model_types=(model_type,),
        read=table.read,
        write=table.write,
        maps=_roberta_maps,
        prefix="roberta.",
        renames=RENAMES,
        ignored=(r"(roberta\.)?embeddings\.position_ids", r"(roberta\.)?pooler\..*"),
        ties=(
            ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            ("lm_head.decoder.bias", "lm_head.bias"),
        ),
        refine_by_names=without_pooler,
    )


def _roberta_maps(spec: ModelSpec) -> Iterator[TensorMap]:
    yield from body_maps(spec.model, "roberta", first_row=_first_row(spec))
    yield from head_maps(spec.model.head, ROBERTA_HEAD_NAMES)
    if isinstance(spec.model.head, TokenHeadConfig):
        yield from scores("lm_head", tied=spec.model.head.tied)


ROBERTA_HEAD_NAMES: HeadNames = {
    TokenHeadConfig: {
        "transform.proj": "lm_head.dense",
        "transform.norm": "lm_head.layer_norm",
    },
    ClassificationHeadConfig: {
        "transform.proj": "classifier.dense",
        "proj": "classifier.out_proj",
    },
    TaggingHeadConfig: {"proj": "classifier"},
    PoolerHeadConfig: {"proj": "roberta.pooler.dense"},
}

ROBERTA = _roberta("roberta", "Roberta")
"""Liu et al. 2019."""

XLM_ROBERTA = _roberta("xlm-roberta", "XLMRoberta")
"""Conneau et al. 2020: RoBERTa in a hundred languages."""

CAMEMBERT = _roberta("camembert", "Camembert")
"""Martin et al. 2020: RoBERTa in French."""
