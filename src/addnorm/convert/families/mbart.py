"""mBART, Pegasus, M2M100 (NLLB): BART's layers with the norms before the sublayers."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases, with_split_sinusoids
from addnorm.convert.core.family import NO_PADDING, Family, ModelSpec, encoder_decoder
from addnorm.convert.core.maps import TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families.fairseq import (
    FIRST_ROW,
    NAMES,
    ONE_OR_THREE_TABLES,
    SCALE,
    SINUSOIDS,
    TIES,
    bart_tensors,
    fairseq_table,
    head_bias,
    shared_table,
    with_head_bias,
)
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig, SinusoidalConfig
from addnorm.nn.residuals import PreNormConfig

PRE_NORM_NAMES = {
    **NAMES,
    "encoder.norm": "model.encoder.layer_norm",
    "decoder.norm": "model.decoder.layer_norm",
}
KEYS: tuple[keys.Entry, ...] = (
    keys.Size("max_len", "max_position_embeddings"),
    SCALE,
    keys.Value("dropout", "dropout", 0.1),
    ONE_OR_THREE_TABLES,
    keys.Fixed("normalize_before add_final_layer_norm", True),
    keys.Fixed("add_bias_logits", False, (True,)),  # there is one either way
    keys.Ignored("classif_dropout classifier_dropout"),
)

MBART = Family(
    model_type="mbart",
    config=fairseq_table(
        "mbart",
        "MBartForConditionalGeneration",
        EncoderDecoderConfig(
            position=LearnedConfig(),
            residual=PreNormConfig(),
            embedding=EmbeddingConfig(norm=LayerNormConfig()),
            head=TokenHeadConfig(bias=True),
        ),
        *KEYS,
        keys.Fixed("normalize_embedding", True),
        keys.Fixed("static_position_embeddings", False),
        keys.Fixed("extra_pos_embeddings", FIRST_ROW),
    ),
    names=PRE_NORM_NAMES,
    others=bart_tensors,
    equivalent=with_biases,
    refine_by_names=with_head_bias,
    prefix="model.",
    ties=TIES,
)
"""Liu et al. 2020 (2001.08210); Tang et al. 2020 in fifty languages."""


def _pegasus_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    yield shared_table(spec)
    yield head_bias(spec)


PEGASUS = Family(
    model_type="pegasus",
    config=fairseq_table(
        "pegasus",
        "PegasusForConditionalGeneration",
        EncoderDecoderConfig(
            position=SinusoidalConfig(layout="halves"),
            residual=PreNormConfig(),
            head=TokenHeadConfig(bias=True),
        ),
        *KEYS,
        keys.Fixed("normalize_embedding", False),
        keys.Fixed("static_position_embeddings", True),
        # The rows before the positions are of tables that are learned.
        keys.Ignored("force_bos_token_to_be_generated extra_pos_embeddings"),
    ),
    names=PRE_NORM_NAMES,
    others=_pegasus_tensors,
    equivalent=lambda model: with_split_sinusoids(with_biases(model)),
    refine_by_names=with_head_bias,
    prefix="model.",
    ignored=(SINUSOIDS,),
    constants=lambda spec: {SINUSOIDS: (spec.model.max_len, spec.model.d_model)},
    ties=TIES,
)
"""Zhang et al. 2020 (1912.08777)."""


def _sinusoids(d_model: int, pad: int) -> SinusoidalConfig:
    """Fairseq's sinusoids, which start after padding and have another base than the original."""
    half = d_model // 2
    theta = 10000.0 ** (half / (half - 1)) if half > 1 else 1.0
    return SinusoidalConfig(theta=theta, layout="halves", first=pad + 1)


def _read_positions(settings: Settings) -> keys.Fields:
    d_model, pad = settings.required_int("d_model"), settings.get("pad_token_id", 1)
    if d_model % 2:
        raise settings.refuse("d_model", "half of the features are sines, and half are cosines")
    if pad < 0:
        raise settings.refuse("pad_token_id", "positions begin after it")
    return {"position": _sinusoids(d_model, pad), "pad_id": pad}


def _write_positions(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    position = model.position
    first = position.first if isinstance(position, SinusoidalConfig) else 0
    pad = spec.pad_id if spec.pad_id is not None else first - 1
    if spec.pad_id == NO_PADDING:
        raise InputError(
            "m2m_100's positions begin after the padding token, and the tokenizer has none"
        )
    if pad < 0 or {position, model.decoder_parts.position} != {_sinusoids(model.d_model, pad)}:
        raise InputError(
            "m2m_100 has the positions "
            f"{_sinusoids(model.d_model, max(pad, 0))} in both stacks, not {position}"
        )
    return {"pad_token_id": pad}


def _m2m_100_tensors(spec: ModelSpec) -> Iterator[TensorMap]:
    yield shared_table(spec)


M2M_100 = Family(
    model_type="m2m_100",
    config=fairseq_table(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        EncoderDecoderConfig(position=SinusoidalConfig(layout="halves"), residual=PreNormConfig()),
        *KEYS,
        keys.Computed(_read_positions, _write_positions),
        keys.Fixed("normalize_embedding", False),
        keys.Fixed("static_position_embeddings", True),
    ),
    names=PRE_NORM_NAMES,
    others=_m2m_100_tensors,
    equivalent=with_biases,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weights?",),
    ties=TIES,
)
"""Fan et al. 2021 (2010.11125); NLLB Team 2022 (2207.04672)."""
