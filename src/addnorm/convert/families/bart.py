"""BART: learned positions, embedding norm, post-norm, GELU."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.known import token_head_of
from addnorm.convert.core.maps import Duplicated, Renamed, SkipRows, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

FIRST = 2
"""The table row of the first position."""


def _read(settings: Settings) -> ModelSpec:
    for key in ("normalize_before", "add_final_layer_norm", "static_position_embeddings"):
        settings.expect(key, False)
    settings.expect("normalize_embedding", True)
    settings.expect("add_bias_logits", False, True)  # there is one either way
    settings.expect("extra_pos_embeddings", FIRST)
    settings.expect("force_bos_token_to_be_generated", False, True)
    for key in ("classif_dropout", "classifier_dropout"):
        settings.get(key, 0.0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    embedding = fairseq.embedding_scale(settings)
    tied = settings.get("tie_word_embeddings", True)
    model = EncoderDecoderConfig(
        d_model=settings.required_int("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.required_int("max_position_embeddings"),
        position=LearnedConfig(),
        **fairseq.sublayers(settings),
        embedding=replace(embedding, norm=LayerNormConfig()),
        share_embeddings=tied,
        head=TokenHeadConfig(tied=tied, bias=True),
        dropout=settings.get("dropout", 0.1),
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _write(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    share, tied = model.share_embeddings, token_head_of(model).tied
    if share != tied:
        raise InputError(
            "bart has one table for both embeddings and the head, or three: "
            f"share_embeddings = {str(share).lower()}, head.tied = {str(tied).lower()}"
        )
    if (target := spec.target_vocab_size) not in (None, spec.vocab_size):
        raise InputError(f"bart has one vocabulary, not {spec.vocab_size} and {target} tokens")
    return fairseq.written(spec, "bart", "BartForConditionalGeneration") | {
        "max_position_embeddings": model.max_len,
        "normalize_embedding": True,
    }


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
    read=_read,
    write=_write,
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
