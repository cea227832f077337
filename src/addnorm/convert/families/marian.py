"""Marian: the original Transformer, split sinusoidal positions, a logit bias."""

from collections.abc import Iterator

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


def _read(settings: Settings) -> ModelSpec:
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        settings.expect(key, False)
    settings.expect("add_bias_logits", False, True)  # there is one either way
    settings.expect("static_position_embeddings", True)
    settings.expect("extra_pos_embeddings", 0, 1, 2)  # only in tables that are not learned
    for key in ("classif_dropout", "classifier_dropout"):
        settings.get(key, 0.0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    share = settings.get("share_encoder_decoder_embeddings", True)
    tied = settings.get("tie_word_embeddings", True)
    vocab_size = settings.required_int("vocab_size")
    target = settings.optional_int("decoder_vocab_size") or vocab_size
    if share and target != vocab_size:
        raise settings.refuse(
            "decoder_vocab_size",
            f"shared embeddings have one vocabulary, and vocab_size = {vocab_size}",
        )
    model = EncoderDecoderConfig(
        d_model=settings.required_int("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.required_int("max_position_embeddings"),
        position=SinusoidalConfig(layout="halves"),
        **fairseq.sublayers(settings),
        embedding=fairseq.embedding_scale(settings),
        share_embeddings=share and tied,  # one table for all, or three
        head=TokenHeadConfig(tied=tied, bias=True),
        dropout=settings.get("dropout", 0.1),
    )
    return ModelSpec(
        model=model,
        vocab_size=vocab_size,
        target_vocab_size=None if target == vocab_size else target,
    )


def _write(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    if model.share_embeddings and not token_head_of(model).tied:
        raise InputError("marian's shared embeddings are the head's as well: head.tied = false")
    return fairseq.written(spec, "marian", "MarianMTModel") | {
        "decoder_vocab_size": spec.target_vocab_size or spec.vocab_size,
        "max_position_embeddings": model.max_len,
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "static_position_embeddings": True,
    }


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
    read=_read,
    write=_write,
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
