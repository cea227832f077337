"""OPT: a GPT decoder with ReLU, all or no projection biases, positions from row 2."""

from collections.abc import Iterator
from dataclasses import replace

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, decoder, layers
from addnorm.convert.core.known import embedding_of
from addnorm.convert.core.maps import Renamed, SkipRows, TensorMap, weight_and_bias
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import decoder_head, decoder_keys, head_weights
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig, TransformConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PostNormConfig, PreNormConfig
from addnorm.parts import kind_of

FIRST_ROW = 2


def _read(settings: Settings) -> ModelSpec:
    d_model = settings.required_int("hidden_size")
    width = settings.optional_int("word_embed_proj_dim") or d_model
    narrow = None if width == d_model else width
    head = decoder_head(settings, tied=settings.get("tie_word_embeddings", True))
    if isinstance(head, TokenHeadConfig) and narrow is not None:
        head = replace(head, transform=_to_table(narrow))
    elif narrow is not None:
        raise settings.refuse(
            "architectures",
            f"its vectors are mapped to word_embed_proj_dim = {width}, and a body ends before",
        )
    before = settings.get("do_layer_norm_before", True)
    settings.expect("_remove_final_layer_norm", False, *(() if before else (True,)))
    settings.expect("layer_norm_elementwise_affine", True)
    settings.expect("learned_embeddings", True)
    settings.expect("scale_embeddings", False)
    for key in ("layerdrop", "activation_dropout"):
        settings.get(key, 0.0)
    bias = settings.get("enable_bias", True)
    model = DecoderConfig(
        d_model=d_model,
        n_layers=settings.required_int("num_hidden_layers"),
        max_len=settings.required_int("max_position_embeddings"),
        position=LearnedConfig(),
        attention=AttentionConfig(
            n_heads=settings.required_int("num_attention_heads"),
            bias=bias,
            dropout=settings.get("attention_dropout", 0.0),
        ),
        feedforward=FeedForwardConfig(
            d_ff=settings.required_int("ffn_dim"),
            activation=activation_of(settings, "activation_function", "relu"),
            bias=bias,
        ),
        norm=LayerNormConfig(),
        residual=PreNormConfig() if before else PostNormConfig(),
        embedding=EmbeddingConfig(scale="one", d_embed=narrow),
        head=head,
        dropout=settings.get("dropout", 0.1),
        init="gpt2",
    )
    return ModelSpec(model=model, vocab_size=settings.required_int("vocab_size"))


def _to_table(width: int) -> TransformConfig:
    """The map from hidden states to the width of the table."""
    return TransformConfig(activation="identity", bias=False, d_out=width)


def _write(spec: ModelSpec) -> Json:
    model = decoder(spec)
    attention, feedforward = attention_of(model), model.feedforward
    if not isinstance(feedforward, FeedForwardConfig):
        raise InputError(f"opt has no {kind_of(feedforward)} feed-forward")
    return {
        "model_type": "opt",
        "vocab_size": spec.vocab_size,
        "hidden_size": model.d_model,
        "word_embed_proj_dim": embedding_of(model).width(model.d_model),
        "ffn_dim": feedforward.d_ff or 4 * model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "max_position_embeddings": model.max_len,
        "do_layer_norm_before": isinstance(model.residual, PreNormConfig),
        "enable_bias": attention.bias,
        "activation_function": activation_name(feedforward.activation),
        "attention_dropout": attention.dropout,
        "dropout": model.dropout,
    } | decoder_keys(model, "OPT")


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = decoder(spec)
    body = "model.decoder"
    yield Renamed("embed.tokens.weight", f"{body}.embed_tokens.weight")
    positions = f"{body}.embed_positions.weight"
    yield SkipRows("embed.position.table.weight", positions, FIRST_ROW)
    if embedding_of(model).d_embed is not None:
        yield Renamed("embed.proj.weight", f"{body}.project_in.weight")
        yield Renamed("head.transform.proj.weight", f"{body}.project_out.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, attention_of(model).bias))
    if isinstance(model.residual, PreNormConfig):
        yield from weight_and_bias("stack.norm", f"{body}.final_layer_norm")
    yield from head_weights(model, "lm_head.weight")


def _layer(i: int, bias: bool) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"model.decoder.layers.{i}"
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.self_attn_layer_norm")
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield from weight_and_bias(
            f"{ours}.attention.{part}", f"{theirs}.self_attn.{part}", bias=bias
        )
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.final_layer_norm")
    yield from weight_and_bias(f"{ours}.feedforward.up_proj", f"{theirs}.fc1", bias=bias)
    yield from weight_and_bias(f"{ours}.feedforward.down_proj", f"{theirs}.fc2", bias=bias)


OPT = Family(
    model_types=("opt",),
    read=_read,
    write=_write,
    maps=_maps,
    prefix="model.",
    ties=(("lm_head.weight", "model.decoder.embed_tokens.weight"),),
)
"""Zhang et al. 2022."""
