"""Whisper: log-mel frames to text; pre-norm, no key bias."""

from collections.abc import Iterator

from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Renamed, TensorMap, weight_and_bias
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
"""Keys for classifiers, training and time stamps."""


def _read(settings: Settings) -> ModelSpec:
    settings.expect("use_weighted_layer_sum", False)
    for key in ("apply_spec_augment", "scale_embedding"):  # training only; unused
        settings.get(key, False)
    for key in ("mask_feature_prob", "mask_time_prob"):
        settings.get(key, 0.0)
    for key in COUNTS.split():
        settings.get(key, 0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    model = EncoderDecoderConfig(
        d_model=settings.required_int("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.required_int("max_source_positions"),
        decoder_max_len=settings.required_int("max_target_positions"),
        position=LearnedConfig(),
        **fairseq.sublayers(settings),
        residual=PreNormConfig(),
        input=LogMelEmbeddingConfig(n_mels=settings.required_int("num_mel_bins")),
        embedding=EmbeddingConfig(scale="one"),
        head=TokenHeadConfig(tied=settings.get("tie_word_embeddings", True)),
        dropout=settings.get("dropout", 0.0),
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _write(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    if not isinstance(model.input, LogMelEmbeddingConfig):
        raise InputError(f"whisper hears log_mel, and does not read {model.input.kind}")
    return fairseq.written(spec, "whisper", "WhisperForConditionalGeneration") | {
        "num_mel_bins": model.input.n_mels,
        "max_source_positions": model.max_len,
        "max_target_positions": model.decoder_max_len or model.max_len,
        "begin_suppress_tokens": None,
    }


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder_decoder(spec)
    yield from weight_and_bias("source_embed.conv1", "model.encoder.conv1")
    yield from weight_and_bias("source_embed.conv2", "model.encoder.conv2")
    yield Renamed("target_embed.tokens.weight", "model.decoder.embed_tokens.weight")
    for embed, side in (("source_embed", "encoder"), ("target_embed", "decoder")):
        yield Renamed(f"{embed}.position.table.weight", f"model.{side}.embed_positions.weight")
        yield from weight_and_bias(f"{side}.norm", f"model.{side}.layer_norm")
    yield from fairseq.stacks(model, key_bias=False)
    if not token_head_of(model).tied:
        yield Renamed("head.weight", "proj_out.weight")


WHISPER = Family(
    model_types=("whisper",),
    read=_read,
    write=_write,
    maps=_maps,
    equivalent=with_biases,
    prefix="model.",
    ties=(("proj_out.weight", "model.decoder.embed_tokens.weight"),),
)
"""Radford et al. 2022."""
