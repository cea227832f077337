"""Marian: the original Transformer, sines before cosines, a bias for the logits."""

from collections.abc import Iterator

from addnorm.convert.core.equivalents import with_biases, with_halves
from addnorm.convert.core.family import Family, Shaped, encoder_decoder
from addnorm.convert.core.maps import Map, Same
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.positions import SinusoidalConfig


def _read(settings: Settings) -> Shaped:
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        settings.only(key, False)
    settings.only("add_bias_logits", False, True)  # there is one in either case
    settings.only("static_position_embeddings", True)
    settings.only("extra_pos_embeddings", 0, 1, 2)  # of tables that are not learned
    for key in ("classif_dropout", "classifier_dropout"):
        settings.get(key, 0.0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    share = settings.get("share_encoder_decoder_embeddings", True)
    tied = settings.get("tie_word_embeddings", True)
    vocab_size = settings.need("vocab_size")
    target = settings.number("decoder_vocab_size") or vocab_size
    if share and not tied:
        raise settings.refuse("tie_word_embeddings", "shared embeddings are the head's as well")
    if share and target != vocab_size:
        raise settings.refuse(
            "decoder_vocab_size",
            f"shared embeddings have one vocabulary, and vocab_size = {vocab_size}",
        )
    model = EncoderDecoderConfig(
        d_model=settings.need("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.need("max_position_embeddings"),
        position=SinusoidalConfig(layout="halves"),
        attention=fairseq.attention(settings),
        feedforward=fairseq.feedforward(settings),
        embedding=fairseq.embedding_scale(settings),
        share_embeddings=share,
        head=TokenHeadConfig(tied=tied, bias=True),
        dropout=settings.get("dropout", 0.1),
    )
    return Shaped(
        model=model,
        vocab_size=vocab_size,
        target_vocab_size=None if target == vocab_size else target,
    )


def _write(shaped: Shaped) -> Json:
    model = encoder_decoder(shaped)
    if model.share_embeddings and not model.head.tied:
        raise InputError("marian's shared embeddings are the head's as well: head.tied = false")
    return fairseq.written(shaped, "marian", "MarianMTModel") | {
        "decoder_vocab_size": shaped.target_vocab_size or shaped.vocab_size,
        "max_position_embeddings": model.max_len,
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "static_position_embeddings": True,
    }


def _restated(model: ModelConfig) -> ModelConfig:
    return with_halves(with_biases(model))


def _maps(shaped: Shaped) -> Iterator[Map]:
    model = encoder_decoder(shaped)
    if model.share_embeddings:
        yield Same("source_embed.tokens.weight", "model.shared.weight")
    else:
        yield Same("source_embed.tokens.weight", "model.encoder.embed_tokens.weight")
        yield Same("target_embed.tokens.weight", "model.decoder.embed_tokens.weight")
    yield from fairseq.stacks(model)
    yield from fairseq.head_bias(shaped)
    if not model.head.tied:
        yield Same("head.weight", "lm_head.weight")


MARIAN = Family(
    model_types=("marian",),
    read=_read,
    write=_write,
    maps=_maps,
    restated=_restated,
    by_names=fairseq.with_head_bias,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
    ties=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    ),
)
"""Junczys-Dowmunt et al. 2018, in the form of the OPUS-MT models (Tiedemann & Thottingal 2020)."""
