"""BART: learned positions, a norm after the embedding and after each sublayer, GELU."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core.equivalents import with_biases
from addnorm.convert.core.family import Family, Shaped, encoder_decoder
from addnorm.convert.core.maps import AfterRows, Map, Same, both
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.families import fairseq
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig

FIRST = 2
"""The row of the first position."""


def _read(settings: Settings) -> Shaped:
    for key in ("normalize_before", "add_final_layer_norm", "static_position_embeddings"):
        settings.only(key, False)
    settings.only("normalize_embedding", True)
    settings.only("add_bias_logits", False, True)  # there is one in either case
    settings.only("extra_pos_embeddings", FIRST)
    settings.only("force_bos_token_to_be_generated", False, True)
    settings.only("tie_word_embeddings", True)
    for key in ("classif_dropout", "classifier_dropout"):
        settings.get(key, 0.0)
    n_layers, n_decoder_layers = fairseq.depths(settings)
    embedding = fairseq.embedding_scale(settings)
    model = EncoderDecoderConfig(
        d_model=settings.need("d_model", "hidden_size"),
        n_layers=n_layers,
        n_decoder_layers=n_decoder_layers,
        max_len=settings.need("max_position_embeddings"),
        position=LearnedConfig(),
        attention=fairseq.attention(settings),
        feedforward=fairseq.feedforward(settings),
        embedding=replace(embedding, norm=LayerNormConfig()),
        head=TokenHeadConfig(bias=True),
        dropout=settings.get("dropout", 0.1),
    )
    return Shaped(model=model, vocab_size=settings.need("vocab_size"))


def _write(shaped: Shaped) -> Json:
    model = encoder_decoder(shaped)
    return fairseq.written(shaped, "bart", "BartForConditionalGeneration") | {
        "max_position_embeddings": model.max_len,
        "normalize_embedding": True,
    }


def _maps(shaped: Shaped) -> Iterator[Map]:
    model = encoder_decoder(shaped)
    yield Same("source_embed.tokens.weight", "model.shared.weight")
    for ours, theirs in (("source", "encoder"), ("target", "decoder")):
        table = f"model.{theirs}.embed_positions.weight"
        yield AfterRows(f"{ours}_embed.position.table.weight", table, FIRST)
        yield from both(f"{ours}_embed.norm", f"model.{theirs}.layernorm_embedding")
    yield from fairseq.stacks(model)
    yield from fairseq.head_bias(shaped)


BART = Family(
    model_types=("bart",),
    read=_read,
    write=_write,
    maps=_maps,
    restated=with_biases,
    by_names=fairseq.with_head_bias,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.version",),
    ties=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("lm_head.weight", "model.shared.weight"),
    ),
)
"""Lewis et al. 2020."""
