"""GPT-NeoX and Pythia: parallel attention and feed-forward, partial rotary positions."""

from collections.abc import Iterator

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, decoder, layers
from addnorm.convert.core.known import required_eps
from addnorm.convert.core.maps import InterleavedHeads, Renamed, TensorMap, weight_and_bias
from addnorm.convert.core.rotary import (
    THETA,
    max_position_embeddings_of,
    rope_table,
    rotary_of,
    write_rotary,
)
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import decoder_head, decoder_keys, head_weights
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.parts import kind_of


def _read(settings: Settings) -> ModelSpec:
    d_model, n_heads = (
        settings.required_int("hidden_size"),
        settings.required_int("num_attention_heads"),
    )
    if d_model % n_heads:
        raise settings.refuse("num_attention_heads", f"hidden_size = {d_model} does not divide")
    parallel = settings.get("use_parallel_residual", True)
    settings.get("classifier_dropout", 0.1)
    model = DecoderConfig(
        d_model=d_model,
        n_layers=settings.required_int("num_hidden_layers"),
        max_len=settings.required_int("max_position_embeddings"),
        position=_rotary(settings, d_model // n_heads),
        attention=AttentionConfig(
            n_heads=n_heads,
            bias=settings.get("attention_bias", True),
            dropout=settings.get("attention_dropout", 0.0),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.required_int("intermediate_size"),
            activation=activation_of(settings, "hidden_act", "gelu"),
        ),
        norm=LayerNormConfig(eps=settings.get("layer_norm_eps", 1e-5)),
        residual=ParallelConfig(norms="each") if parallel else PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        head=decoder_head(settings, tied=settings.get("tie_word_embeddings", False)),
        dropout=settings.get("hidden_dropout", 0.0),
        init="gpt2",
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _rotary(settings: Settings, d_head: int) -> RotaryConfig:
    """Partial rotary positions, from `rope_parameters` or older keys."""
    theta, part = settings.get("rotary_emb_base", THETA), settings.get("rotary_pct", 0.25)
    settings.expect("rope_theta", None, theta)
    settings.expect("partial_rotary_factor", None, part)
    table = rope_table(settings)
    fraction = table.get("partial_rotary_factor", part)
    if abs(int(d_head * fraction) - d_head * fraction) > 1e-6:
        raise InputError(
            f"{settings.where}: rotary_pct = {fraction:g} of a head of {d_head} features turns "
            f"{d_head * fraction:g} of them, which is no whole number"
        )
    return rotary_of(table, settings, theta, fraction)


def _write(spec: ModelSpec) -> Json:
    model = decoder(spec)
    attention, feedforward = attention_of(model), model.feedforward
    if not isinstance(feedforward, FeedForwardConfig):
        raise InputError(f"gpt_neox has no {kind_of(feedforward)} feed-forward")
    rope = write_rotary(model.position)
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    fraction = model.position.fraction if isinstance(model.position, RotaryConfig) else 1.0
    return {
        "model_type": "gpt_neox",
        "vocab_size": spec.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": feedforward.d_ff or 4 * model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "hidden_act": activation_name(feedforward.activation),
        "max_position_embeddings": max_position_embeddings_of(model),
        "rope_parameters": rope | {"partial_rotary_factor": fraction},
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": fraction,
        "layer_norm_eps": required_eps(model.norm),
        "use_parallel_residual": isinstance(model.residual, ParallelConfig),
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "hidden_dropout": model.dropout,
    } | decoder_keys(model, "GPTNeoX")


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = decoder(spec)
    yield Renamed("embed.tokens.weight", "gpt_neox.embed_in.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, attention_of(model)))
    yield from weight_and_bias("stack.norm", "gpt_neox.final_layer_norm")
    yield from head_weights(model, "embed_out.weight")


def _layer(i: int, attention: AttentionConfig) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"gpt_neox.layers.{i}"
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.input_layernorm")
    for kind in ("weight", "bias") if attention.bias else ("weight",):
        q, k, v = (f"{ours}.attention.{part}_proj.{kind}" for part in "qkv")
        yield InterleavedHeads(
            (q, k, v), f"{theirs}.attention.query_key_value.{kind}", attention.n_heads
        )
    dense = f"{theirs}.attention.dense"
    yield from weight_and_bias(f"{ours}.attention.out_proj", dense, bias=attention.bias)
    yield from weight_and_bias(
        f"{ours}.feedforward_residual.norm", f"{theirs}.post_attention_layernorm"
    )
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.mlp.dense_h_to_4h")
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.mlp.dense_4h_to_h")


GPT_NEOX = Family(
    model_types=("gpt_neox",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="gpt_neox.",
    renames=((r"^lm_head\.", "embed_out."),),
    ignored=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    ties=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
)
"""Black et al. 2022; Biderman et al. 2023."""
