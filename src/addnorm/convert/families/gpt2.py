"""GPT-2: learned positions, pre-norm, GELU; weights stored as (in, out)."""

from collections.abc import Iterator

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, decoder, layers
from addnorm.convert.core.maps import Concatenated, Renamed, TensorMap, Transposed, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import decoder_head, decoder_keys, head_weights
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.parts import kind_of


def _read(settings: Settings) -> ModelSpec:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("reorder_and_upcast_attn", False, True)
    d_model = settings.required_int("n_embd", "hidden_size")
    for key in ("summary_type", "summary_use_proj", "summary_activation"):
        settings.get(key, settings.tree.get(key) or "")
    for key in ("summary_first_dropout", "summary_proj_to_labels"):
        settings.get(key, settings.tree.get(key) or 0)
    model = DecoderConfig(
        d_model=d_model,
        n_layers=settings.required_int("n_layer", "num_hidden_layers"),
        max_len=settings.required_int("n_positions", "max_position_embeddings"),
        position=LearnedConfig(),
        attention=AttentionConfig(
            n_heads=settings.required_int("n_head", "num_attention_heads"),
            dropout=settings.get("attn_pdrop", 0.1),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.optional_int("n_inner") or 4 * d_model,
            activation=activation_of(settings, "activation_function", "gelu_new"),
        ),
        norm=LayerNormConfig(eps=settings.get("layer_norm_epsilon", 1e-5)),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        head=decoder_head(settings, tied=settings.get("tie_word_embeddings", True)),
        dropout=settings.get("resid_pdrop", 0.1),
        init="gpt2",
    )
    settings.get("embd_pdrop", 0.1)
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _write(spec: ModelSpec) -> Json:
    model = decoder(spec)
    attention, feedforward = attention_of(model), model.feedforward
    if not isinstance(feedforward, FeedForwardConfig):
        raise InputError(f"gpt2 has no {kind_of(feedforward)} feed-forward")
    return {
        "model_type": "gpt2",
        "vocab_size": spec.vocab_size,
        "n_positions": model.max_len,
        "n_embd": model.d_model,
        "n_layer": model.n_layers,
        "n_head": attention.n_heads,
        "n_inner": feedforward.d_ff or 4 * model.d_model,
        "activation_function": activation_name(feedforward.activation),
        "layer_norm_epsilon": getattr(model.norm, "eps", 1e-5),
        "attn_pdrop": attention.dropout,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
    } | decoder_keys(model, "GPT2", "LMHeadModel")


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = decoder(spec)
    yield Renamed("embed.tokens.weight", "transformer.wte.weight")
    yield Renamed("embed.position.table.weight", "transformer.wpe.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, model.d_model))
    yield from weight_and_bias("stack.norm", "transformer.ln_f")
    yield from head_weights(model, "lm_head.weight")


def _layer(i: int, d_model: int) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"transformer.h.{i}"
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.ln_1")
    for kind in ("weight", "bias"):
        names = tuple(f"{ours}.attention.{part}_proj.{kind}" for part in "qkv")
        fused = Concatenated(names, f"{theirs}.attn.c_attn.{kind}", (d_model,) * 3)
        yield Transposed(fused) if kind == "weight" else fused
    yield from _turned(f"{ours}.attention.out_proj", f"{theirs}.attn.c_proj")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.ln_2")
    yield from _turned(f"{ours}.feedforward.up_proj", f"{theirs}.mlp.c_fc")
    yield from _turned(f"{ours}.feedforward.down_proj", f"{theirs}.mlp.c_proj")


def _turned(ours: str, theirs: str) -> Iterator[TensorMap]:
    yield Transposed(Renamed(f"{ours}.weight", f"{theirs}.weight"))
    yield Renamed(f"{ours}.bias", f"{theirs}.bias")


GPT2 = Family(
    model_types=("gpt2",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""Radford et al. 2019."""
