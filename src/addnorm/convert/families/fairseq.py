"""Encoder–decoders with the layers of fairseq: Marian, BART and Whisper."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases, with_split_sinusoids
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder, token_head_of
from addnorm.convert.core.maps import (
    Duplicated,
    Renamed,
    Reshaped,
    SkipRows,
    TensorMap,
    ZeroTensor,
    within,
)
from addnorm.convert.core.settings import Json, Settings
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID, PAD_ID
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig, SinusoidalConfig
from addnorm.nn.residuals import PreNormConfig

TOKEN_IDS: Json = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}
"""The ids of our tokenizers, which those of a folder replace."""


def fairseq_table(
    model_type: str, architecture: str, model: EncoderDecoderConfig, *entries: keys.Entry
) -> keys.ConfigTable:
    """The config table of a family: the keys of both stacks, and `entries`."""
    attention, feedforward = AttentionConfig(n_heads=1), FeedForwardConfig()
    return keys.ConfigTable(
        replace(
            model,
            attention=attention,
            decoder_attention=attention,
            feedforward=feedforward,
            decoder_feedforward=feedforward,
        ),
        (
            keys.VOCABULARY,
            keys.Size("d_model", "d_model hidden_size"),
            keys.Size("n_layers", "encoder_layers num_hidden_layers"),
            keys.Size("n_decoder_layers", "decoder_layers"),
            keys.Size("attention.n_heads", "encoder_attention_heads"),
            keys.Size("decoder_attention.n_heads", "decoder_attention_heads"),
            keys.Size("feedforward.d_ff", "encoder_ffn_dim"),
            keys.Size("decoder_feedforward.d_ff", "decoder_ffn_dim"),
            keys.Choice(
                "feedforward.activation decoder_feedforward.activation",
                "activation_function",
                keys.ACTIVATIONS,
                "gelu",
            ),
            keys.Value("attention.dropout decoder_attention.dropout", "attention_dropout", 0.0),
            keys.Value(
                "feedforward.dropout decoder_feedforward.dropout", "activation_dropout", 0.0
            ),
            keys.Value("head.tied", "tie_word_embeddings", True),
            keys.Ignored("encoder_layerdrop decoder_layerdrop"),
            *entries,
        ),
        {
            "model_type": model_type,
            "architectures": [architecture],
            "is_encoder_decoder": True,
            **TOKEN_IDS,
            "forced_eos_token_id": None,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
        _without_equal_decoder,
    )


def _without_equal_decoder(model: ModelConfig) -> ModelConfig:
    """The model without decoder settings that equal the encoder's."""
    assert isinstance(model, EncoderDecoderConfig)
    return replace(
        model,
        decoder_attention=_if_other(model.decoder_attention, model.attention),
        decoder_feedforward=_if_other(model.decoder_feedforward, model.feedforward),
    )


T = TypeVar("T")


def _if_other(part: T, other: object) -> T | None:
    return None if part == other else part


ATTENTION = {f"{part}_proj": f"{part}_proj" for part in ("q", "k", "v", "out")}
LAYER = {
    **within("attention", "self_attn", ATTENTION),
    "attention_residual.norm": "self_attn_layer_norm",
    **within("cross_attention", "encoder_attn", ATTENTION),
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feedforward.up_proj": "fc1",
    "feedforward.down_proj": "fc2",
    "feedforward_residual.norm": "final_layer_norm",
}
NAMES: Mapping[str, str] = {
    "source_embed.tokens": "model.encoder.embed_tokens",
    "target_embed.tokens": "model.decoder.embed_tokens",
    "source_embed.norm": "model.encoder.layernorm_embedding",
    "target_embed.norm": "model.decoder.layernorm_embedding",
    "head": "lm_head",
    **within("encoder.blocks.*", "model.encoder.layers.*", LAYER),
    **within("decoder.blocks.*", "model.decoder.layers.*", LAYER),
}
SINUSOIDS = r"(model\.)?(encoder|decoder)\.embed_positions\.weight"
"""Tables of sinusoidal positions, which files may have though nothing is learnt in them."""

TIES = (
    ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ("lm_head.weight", "model.shared.weight"),
)

# Marian and BART, whose head has a bias of its own.

SCALE = keys.Choice("embedding.scale", "scale_embedding", {True: "sqrt", False: "one"}, False)

HEAD_BIAS = "final_logits_bias"


def with_head_bias(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Give the head a bias if the file has one."""
    model = encoder_decoder(spec)
    head = replace(token_head_of(model), bias=HEAD_BIAS in names)
    return replace(spec, model=replace(model, head=head))


def head_bias(spec: ModelSpec) -> TensorMap:
    """The map of the head's bias, which a file stores as a batch of one."""
    n_tokens = spec.target_vocab_size or spec.vocab_size
    return Reshaped("head.bias", HEAD_BIAS, (n_tokens,), (1, n_tokens))


def _read_tables(settings: Settings) -> keys.Fields:
    """The vocabulary sizes of one shared token table, or of separate ones."""
    share = settings.get("share_encoder_decoder_embeddings", True)
    vocab_size = settings.required_int("vocab_size")
    target = settings.optional_int("decoder_vocab_size") or vocab_size
    if share and target != vocab_size:
        raise settings.refuse(
            "decoder_vocab_size",
            f"shared embeddings have one vocabulary, and vocab_size = {vocab_size}",
        )
    return {
        "share_embeddings": share and settings.get("tie_word_embeddings", True),
        "target_vocab_size": None if target == vocab_size else target,
    }


def _write_tables(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    if model.share_embeddings and not token_head_of(model).tied:
        raise InputError("marian's shared embeddings are the head's as well: head.tied = false")
    return {
        "decoder_vocab_size": spec.target_vocab_size or spec.vocab_size,
        "share_encoder_decoder_embeddings": model.share_embeddings,
    }


def _marian_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    if encoder_decoder(spec).share_embeddings:
        yield Renamed("source_embed.tokens.weight", "model.shared.weight")
    yield head_bias(spec)


MARIAN = Family(
    model_type="marian",
    config=fairseq_table(
        "marian",
        "MarianMTModel",
        EncoderDecoderConfig(
            position=SinusoidalConfig(layout="halves"), head=TokenHeadConfig(bias=True)
        ),
        keys.Size("max_len", "max_position_embeddings"),
        SCALE,
        keys.Value("dropout", "dropout", 0.1),
        keys.Computed(_read_tables, _write_tables),
        keys.Fixed("static_position_embeddings", True, written=True),
        keys.Fixed("normalize_before normalize_embedding add_final_layer_norm", False),
        keys.Fixed("add_bias_logits", False, (True,)),  # there is one either way
        # The rows before the positions are of tables that are learned.
        keys.Ignored("classif_dropout classifier_dropout extra_pos_embeddings"),
    ),
    names=NAMES,
    others=_marian_tensors,
    equivalent=lambda model: with_split_sinusoids(with_biases(model)),
    refine_by_names=with_head_bias,
    prefix="model.",
    ignored=(
        SINUSOIDS,
        r"(model\.)?shared\.weight",  # where nothing is shared
    ),
    constants=lambda spec: {SINUSOIDS: (spec.model.max_len, spec.model.d_model)},
    ties=(*TIES, ("lm_head.weight", "model.decoder.embed_tokens.weight")),
)
"""The original Transformer with split sinusoidal positions: Junczys-Dowmunt et al. 2018, as in the
OPUS-MT models (Tiedemann & Thottingal 2020)."""


FIRST_ROW = 2
"""The row of BART's table for the first position."""


def _check_sharing(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    share, tied = model.share_embeddings, token_head_of(model).tied
    if share != tied:
        raise InputError(
            "this family has one table for both embeddings and the head, or three: "
            f"share_embeddings = {str(share).lower()}, head.tied = {str(tied).lower()}"
        )
    if (target := spec.target_vocab_size) not in (None, spec.vocab_size):
        raise InputError(
            f"this family has one vocabulary, not {spec.vocab_size} and {target} tokens"
        )
    return {}


ONE_OR_THREE_TABLES = keys.Computed(
    lambda settings: {"share_embeddings": settings.get("tie_word_embeddings", True)},
    _check_sharing,
)
"""One table of tokens for both stacks and the head, or three."""


def shared_table(spec: ModelSpec) -> TensorMap:
    """The map of the encoder's token table, which may be shared with decoder and head."""
    source, shared = "source_embed.tokens.weight", "model.shared.weight"
    if encoder_decoder(spec).share_embeddings:
        return Renamed(source, shared)
    # The table that was to be shared is in the file all the same.
    return Duplicated(source, f"{NAMES['source_embed.tokens']}.weight", shared)


def bart_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of the token and position tables and of the head's bias."""
    yield shared_table(spec)
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        table = f"model.{theirs}.embed_positions.weight"
        yield SkipRows(f"{ours}_embed.position.table.weight", table, FIRST_ROW)
    yield head_bias(spec)


BART = Family(
    model_type="bart",
    config=fairseq_table(
        "bart",
        "BartForConditionalGeneration",
        EncoderDecoderConfig(
            position=LearnedConfig(),
            embedding=EmbeddingConfig(norm=LayerNormConfig()),
            head=TokenHeadConfig(bias=True),
        ),
        keys.Size("max_len", "max_position_embeddings"),
        SCALE,
        keys.Value("dropout", "dropout", 0.1),
        ONE_OR_THREE_TABLES,
        keys.Fixed("normalize_embedding", True, written=True),
        keys.Fixed("normalize_before add_final_layer_norm static_position_embeddings", False),
        keys.Fixed("add_bias_logits", False, (True,)),  # there is one either way
        keys.Fixed("force_bos_token_to_be_generated", False, (True,)),
        keys.Ignored("classif_dropout classifier_dropout"),
        keys.Fixed("extra_pos_embeddings", FIRST_ROW),
    ),
    names=NAMES,
    others=bart_tensors,
    equivalent=with_biases,
    refine_by_names=with_head_bias,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.version",),
    ties=TIES,
)
"""Learned positions, a norm of the embeddings, post-norm, GELU: Lewis et al. 2020."""


# Whisper, which reads log-mel frames.


def _whisper_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of Whisper, in which keys have no bias."""
    model = encoder_decoder(spec)
    for side, layers in model.stacks.items():
        for i in range(len(layers)):
            for attention in ("attention", "cross_attention"):
                name = f"{side}.blocks.{i}.{attention}.k_proj.bias"
                yield ZeroTensor(name, (model.d_model,))


WHISPER = Family(
    model_type="whisper",
    config=fairseq_table(
        "whisper",
        "WhisperForConditionalGeneration",
        EncoderDecoderConfig(
            position=LearnedConfig(),
            residual=PreNormConfig(),
            input=LogMelEmbeddingConfig(),
            embedding=EmbeddingConfig(scale="one"),
        ),
        keys.Size("input.n_mels", "num_mel_bins"),
        keys.Size("max_len", "max_source_positions"),
        keys.Size("decoder_max_len", "max_target_positions"),
        keys.Value("dropout", "dropout", 0.0),
        keys.Fixed("use_weighted_layer_sum", False),
        keys.Computed(lambda settings: {}, lambda spec: {"begin_suppress_tokens": None}),
        # Keys of classifiers, of training and of time stamps; the last has no use.
        keys.Ignored(
            """
            apply_spec_augment classifier_proj_size mask_feature_length mask_feature_min_masks
            mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob
            median_filter_width scale_embedding
            """
        ),
    ),
    names={
        **NAMES,
        "source_embed.conv1": "model.encoder.conv1",
        "source_embed.conv2": "model.encoder.conv2",
        "source_embed.position.table": "model.encoder.embed_positions",
        "target_embed.position.table": "model.decoder.embed_positions",
        "encoder.norm": "model.encoder.layer_norm",
        "decoder.norm": "model.decoder.layer_norm",
        "head": "proj_out",
    },
    others=_whisper_tensors,
    equivalent=with_biases,
    prefix="model.",
    ties=(("proj_out.weight", "model.decoder.embed_tokens.weight"),),
)
"""Log-mel frames to text, pre-norm: Radford et al. 2022."""
