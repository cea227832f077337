"""mBART and Pegasus: BART's layers with the norms before the sublayers."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases, with_split_sinusoids
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.maps import TensorMap
from addnorm.convert.families.fairseq import (
    FIRST_ROW,
    NAMES,
    ONE_OR_THREE_TABLES,
    SCALE,
    TIES,
    bart_tensors,
    fairseq_table,
    head_bias,
    shared_table,
    with_head_bias,
)
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
        keys.Fixed("extra_pos_embeddings", 0, (1, 2)),  # only in tables that are not learned
        keys.Ignored("force_bos_token_to_be_generated"),
    ),
    names=PRE_NORM_NAMES,
    others=_pegasus_tensors,
    equivalent=lambda model: with_split_sinusoids(with_biases(model)),
    refine_by_names=with_head_bias,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
    ties=TIES,
)
"""Zhang et al. 2020 (1912.08777)."""
