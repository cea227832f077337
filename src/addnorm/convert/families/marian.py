"""Marian: the original Transformer, split sinusoidal positions, a logit bias."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases, with_split_sinusoids
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Renamed, TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.positions import SinusoidalConfig


def _read_tables(settings: Settings) -> keys.Fields:
    """There is one table of tokens for all, or there are three."""
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


TABLE = fairseq.fairseq_table(
    "marian",
    "MarianMTModel",
    EncoderDecoderConfig(
        position=SinusoidalConfig(layout="halves"), head=TokenHeadConfig(bias=True)
    ),
    keys.Size("max_len", "max_position_embeddings"),
    fairseq.SCALE,
    keys.Value("dropout", "dropout", 0.1),
    keys.Computed(_read_tables, _write_tables),
    keys.Fixed("static_position_embeddings", True, written=True),
    keys.Fixed("normalize_before normalize_embedding add_final_layer_norm", False),
    keys.Fixed("add_bias_logits", False, (True,)),  # there is one either way
    keys.Ignored("classif_dropout classifier_dropout"),
    keys.Fixed("extra_pos_embeddings", 0, (1, 2)),  # only in tables that are not learned
)


def _restated(model: ModelConfig) -> ModelConfig:
    return with_split_sinusoids(with_biases(model))


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder_decoder(spec)
    if model.share_embeddings:
        yield Renamed("source_embed.tokens.weight", "model.shared.weight")
    else:
        yield Renamed("source_embed.tokens.weight", "model.encoder.embed_tokens.weight")
        yield Renamed("target_embed.tokens.weight", "model.decoder.embed_tokens.weight")
    yield from fairseq.stacks(model)
    yield from fairseq.head_bias(spec)
    if not token_head_of(model).tied:
        yield Renamed("head.weight", "lm_head.weight")


MARIAN = Family(
    model_types=("marian",),
    read=TABLE.read,
    write=TABLE.write,
    maps=_maps,
    equivalent=_restated,
    refine_by_names=fairseq.with_head_bias,
    prefix="model.",
    ignored=(
        r"(model\.)?(encoder|decoder)\.embed_positions\.weight",
        r"(model\.)?shared\.weight",  # where nothing is shared
    ),
    ties=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    ),
)
"""Junczys-Dowmunt et al. 2018, as in the OPUS-MT models (Tiedemann & Thottingal 2020)."""
