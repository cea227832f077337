"""BART: learned positions, embedding norm, post-norm, GELU."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Duplicated, Renamed, SkipRows, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

FIRST = 2
"""The table row of the first position."""


def _read_sharing(settings: Settings) -> keys.Fields:
    return {"share_embeddings": settings.get("tie_word_embeddings", True)}


def _check_sharing(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    share, tied = model.share_embeddings, token_head_of(model).tied
    if share != tied:
        raise InputError(
            "bart has one table for both embeddings and the head, or three: "
            f"share_embeddings = {str(share).lower()}, head.tied = {str(tied).lower()}"
        )
    if (target := spec.target_vocab_size) not in (None, spec.vocab_size):
        raise InputError(f"bart has one vocabulary, not {spec.vocab_size} and {target} tokens")
    return {}


TABLE = fairseq.fairseq_table(
    "bart",
    "BartForConditionalGeneration",
    EncoderDecoderConfig(
        position=LearnedConfig(),
        embedding=EmbeddingConfig(norm=LayerNormConfig()),
        head=TokenHeadConfig(bias=True),
    ),
    keys.Size("max_len", "max_position_embeddings"),
    fairseq.SCALE,
    keys.Value("dropout", "dropout", 0.1),
    keys.Computed(_read_sharing, _check_sharing),
    keys.Fixed("normalize_embedding", True, written=True),
    keys.Fixed("normalize_before add_final_layer_norm static_position_embeddings", False),
    keys.Fixed("add_bias_logits", False, (True,)),  # there is one either way
    keys.Fixed("force_bos_token_to_be_generated", False, (True,)),
    keys.Ignored("classif_dropout classifier_dropout"),
    keys.Fixed("extra_pos_embeddings", FIRST),
)


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder_decoder(spec)
    source, shared = "source_embed.tokens.weight", "model.shared.weight"
    if model.share_embeddings:
        yield Renamed(source, shared)
    else:  # the table that was to be shared is in the file all the same
        yield Duplicated(source, "model.encoder.embed_tokens.weight", shared)
        yield Renamed("target_embed.tokens.weight", "model.decoder.embed_tokens.weight")
        yield Renamed("head.weight", "lm_head.weight")
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        table = f"model.{theirs}.embed_positions.weight"
        yield SkipRows(f"{ours}_embed.position.table.weight", table, FIRST)
        yield from weight_and_bias(f"{ours}_embed.norm", f"model.{theirs}.layernorm_embedding")
    yield from fairseq.stacks(model)
    yield from fairseq.head_bias(spec)


BART = Family(
    model_types=("bart",),
    read=TABLE.read,
    write=TABLE.write,
    maps=_maps,
    equivalent=with_biases,
    refine_by_names=fairseq.with_head_bias,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.version",),
    ties=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
    ),
)
"""Lewis et al. 2020."""
