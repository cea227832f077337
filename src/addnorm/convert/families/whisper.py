"""Whisper: log-mel frames to text; pre-norm, no key bias."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Renamed, TensorMap, weight_and_bias
from addnorm.convert.families import fairseq
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

IGNORED = """
    apply_spec_augment classifier_proj_size mask_feature_length mask_feature_min_masks
    mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob median_filter_width
    scale_embedding
"""
"""Keys of classifiers, training and time stamps, and one without a use."""

TABLE = fairseq.fairseq_table(
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
    keys.Ignored(IGNORED),
)


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
    read=TABLE.read,
    write=TABLE.write,
    maps=_maps,
    equivalent=with_biases,
    prefix="model.",
    ties=(("proj_out.weight", "model.decoder.embed_tokens.weight"),),
)
"""Radford et al. 2022."""
