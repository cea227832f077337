"""Whisper: log-mel frames in, text out; norms before each sublayer, and keys without a bias."""

from collections.abc import Iterator

from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, Shaped, encoder_decoder
from addnorm.convert.core.maps import Map, Same, both
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

COUNTS = """
    classifier_proj_size mask_feature_length mask_feature_min_masks mask_time_length
    mask_time_min_masks median_filter_width
"""
"""What classifiers, training and time stamps have."""


def _read(settings: Settings) -> Shaped:
    settings.only("use_weighted_layer_sum", False)
    for key in ("apply_spec_augment", "scale_embedding"):  # in training; never done
        settings.get(key, False)
    for key in ("mask_feature_prob", "mask_time_prob"):
        settings.get(key, 0.0)
    for key in COUNTS.split():
        settings.get(key, 0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    model = EncoderDecoderConfig(
        d_model=settings.need("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.need("max_source_positions"),
        decoder_max_len=settings.need("max_target_positions"),
        position=LearnedConfig(),
        attention=fairseq.attention(settings),
        feedforward=fairseq.feedforward(settings),
        residual=PreNormConfig(),
        input=LogMelEmbeddingConfig(n_mels=settings.need("num_mel_bins")),
        embedding=EmbeddingConfig(scale="one"),
        head=TokenHeadConfig(tied=settings.get("tie_word_embeddings", True)),
        dropout=settings.get("dropout", 0.0),
    )
    return Shaped(model=model, vocab_size=settings.need("vocab_size"))


def _write(shaped: Shaped) -> Json:
    model = encoder_decoder(shaped)
    if not isinstance(model.input, LogMelEmbeddingConfig):
        raise InputError(f"whisper hears log_mel, and does not read {model.input.kind}")
    return fairseq.written(shaped, "whisper", "WhisperForConditionalGeneration") | {
        "num_mel_bins": model.input.n_mels,
        "max_source_positions": model.max_len,
        "max_target_positions": model.decoder_max_len or model.max_len,
        "begin_suppress_tokens": None,
    }


def _maps(shaped: Shaped) -> Iterator[Map]:
    model = encoder_decoder(shaped)
    yield from both("source_embed.conv1", "model.encoder.conv1")
    yield from both("source_embed.conv2", "model.encoder.conv2")
    yield Same("target_embed.tokens.weight", "model.decoder.embed_tokens.weight")
    for embed, side in (("source_embed", "encoder"), ("target_embed", "decoder")):
        yield Same(f"{embed}.position.table.weight", f"model.{side}.embed_positions.weight")
        yield from both(f"{side}.norm", f"model.{side}.layer_norm")
    yield from fairseq.stacks(model, key_bias=False)
    if not model.head.tied:
        yield Same("head.weight", "proj_out.weight")


WHISPER = Family(
    model_types=("whisper",),
    read=_read,
    write=_write,
    maps=_maps,
    restated=with_biases,
    prefix="model.",
    ties=(("proj_out.weight", "model.decoder.embed_tokens.weight"),),
)
"""Radford et al. 2022."""
