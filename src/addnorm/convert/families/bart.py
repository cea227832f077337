"""BART: learned positions, a norm after the embedding and after each sublayer, GELU."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, ModelSpec, encoder_decoder
from addnorm.convert.core.maps import Renamed, SkipRows, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

FIRST = 2
"""The row of the first position."""


def _read(settings: Settings) -> ModelSpec:
    for key in ("normalize_before", "add_final_layer_norm", "static_position_embeddings"):
        settings.expect(key, False)
    settings.expect("normalize_embedding", True)
    settings.expect("add_bias_logits", False, True)  # there is one in either case
    settings.expect("extra_pos_embeddings", FIRST)
    settings.expect("force_bos_token_to_be_generated", False, True)
    settings.expect("tie_word_embeddings", True)
    for key in ("classif_dropout", "classifier_dropout"):
        settings.get(key, 0.0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    embedding = fairseq.embedding_scale(settings)
    model = EncoderDecoderConfig(
        d_model=settings.required_int("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.required_int("max_position_embeddings"),
        position=LearnedConfig(),
        attention=fairseq.attention(settings),
        feedforward=fairseq.feedforward(settings),
        embedding=replace(embedding, norm=LayerNormConfig()),
        head=TokenHeadConfig(bias=True),
        dropout=settings.get("dropout", 0.1),
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _write(spec: ModelSpec) -> Json:
    model = encoder_decoder(spec)
    return fairseq.written(spec, "bart", "BartForConditionalGeneration") | {
        "max_position_embeddings": model.max_len,
        "normalize_embedding": True,
    }


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = encoder_decoder(spec)
    yield Renamed("source_embed.tokens.weight", "model.shared.weight")
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
