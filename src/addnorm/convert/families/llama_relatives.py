"""Tensor names and config keys shared by LLaMA and the families derived from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, ModelSpec, attention_of, layers, one_stack
from addnorm.convert.core.known import required_eps
from addnorm.convert.core.maps import Renamed, TensorMap, weight_and_bias
from addnorm.convert.core.rotary import max_position_embeddings_of
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import decoder_head, decoder_keys, head_weights
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation, GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.parts import kind_of

IGNORED = (r".*\.rotary_emb\.inv_freq",)
TIES = (("lm_head.weight", "model.embed_tokens.weight"),)

PRE = {
    "attention_residual.norm": "input_layernorm",
    "feedforward_residual.norm": "post_attention_layernorm",
}
SANDWICH = {
    "attention_residual.norm_in": "input_layernorm",
    "attention_residual.norm_out": "post_attention_layernorm",
    "feedforward_residual.norm_in": "pre_feedforward_layernorm",
    "feedforward_residual.norm_out": "post_feedforward_layernorm",
}
"""Hugging Face names of the norms by our names."""


def read_attention(
    settings: Settings, *, kv_heads: int | None = None, d_head: int | None = None, **overrides: Any
) -> AttentionConfig:
    """LLaMA's attention with `overrides`; `kv_heads` and `d_head` are defaults for missing keys."""
    d_model, n_heads = (
        settings.required_int("hidden_size"),
        settings.required_int("num_attention_heads"),
    )
    share = None if d_model % n_heads else d_model // n_heads
    parts: dict[str, Any] = {
        "n_heads": n_heads,
        "n_kv_heads": settings.optional_int("num_key_value_heads", missing=kv_heads) or n_heads,
        "d_head": settings.optional_int("head_dim", missing=d_head) or share,
        "bias": False,
        "out_bias": False,
        "dropout": settings.get("attention_dropout", 0.0),
    }
    return AttentionConfig(**parts | overrides)


def read_eps(settings: Settings) -> float:
    """The ε of all norms."""
    return settings.get("rms_norm_eps", 1e-6)


def read_gated_feedforward(
    settings: Settings, *, bias: bool = False, activation: Activation | None = None
) -> GatedFeedForwardConfig:
    """The feed-forward layer, by default with the activation under `hidden_act`."""
    return GatedFeedForwardConfig(
        d_ff=settings.required_int("intermediate_size"),
        activation=activation or activation_of(settings, "hidden_act", "silu"),
        bias=bias,
    )


def read_model(
    settings: Settings,
    attention: AttentionConfig,
    position: PositionConfig,
    kind: type[DecoderConfig | EncoderConfig] = DecoderConfig,
    **overrides: Any,
) -> ModelSpec:
    """LLaMA with this attention and these positions, and `overrides`; it may be an encoder."""
    parts: dict[str, Any] = {
        "d_model": settings.required_int("hidden_size"),
        "n_layers": settings.required_int("num_hidden_layers"),
        "max_len": settings.required_int("max_position_embeddings"),
        "position": position,
        "attention": attention,
        "norm": RMSNormConfig(eps=read_eps(settings)),
        "residual": PreNormConfig(),
        "embedding": EmbeddingConfig(scale="one"),
        "dropout": 0.0,
        "init": "gpt2",
    }
    if "feedforward" not in overrides:
        parts["feedforward"] = read_gated_feedforward(settings)
    if "head" not in overrides:
        tied = settings.get("tie_word_embeddings", False)
        parts["head"] = decoder_head(settings, tied=tied)
    return ModelSpec(
        model=kind(**parts | overrides), vocab_size=settings.required_int("vocab_size")
    )


def write_model(
    spec: ModelSpec, model_type: str, stem: str, *, activation: str = "hidden_act"
) -> Json:
    """The config keys shared by all; `activation` is the key of the activation name."""
    model = one_stack(spec)
    attention, feedforward = attention_of(model), model.feedforward
    if not isinstance(feedforward, GatedFeedForwardConfig):
        raise InputError(f"{model_type} has no {kind_of(feedforward)} feed-forward")
    heads = attention.heads(model.d_model)
    return {
        "model_type": model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": feedforward.d_ff or 8 * model.d_model // 3,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": heads.n_kv_heads,
        "head_dim": heads.d_head,
        activation: activation_name(feedforward.activation),
        "max_position_embeddings": max_position_embeddings_of(model),
        "rms_norm_eps": required_eps(model.norm),
        "attention_dropout": attention.dropout,
    } | decoder_keys(model, stem)


def check_divides(model: DecoderConfig | EncoderConfig, model_type: str) -> None:
    """Raise `InputError` if the heads do not divide the width, as transformers requires."""
    if model.d_model % (n_heads := attention_of(model).n_heads):
        raise InputError(
            f"{model_type} needs a width that divides into heads: d_model = {model.d_model}, "
            f"n_heads = {n_heads}"
        )


def maps(spec: ModelSpec, norms: Mapping[str, str] = PRE) -> Iterator[TensorMap]:
    """The maps of all tensors."""
    model = one_stack(spec)
    yield Renamed("embed.tokens.weight", "model.embed_tokens.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, model, norms))
    yield Renamed("stack.norm.weight", "model.norm.weight")
    yield from head_weights(model, "lm_head.weight")


def _layer(
    i: int, model: DecoderConfig | EncoderConfig, norms: Mapping[str, str]
) -> Iterator[TensorMap]:
    attention, feedforward = attention_of(model), model.feedforward
    assert isinstance(feedforward, GatedFeedForwardConfig)
    out_bias = attention.bias if attention.out_bias is None else attention.out_bias
    ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
    for one, other in norms.items():
        yield Renamed(f"{ours}.{one}.weight", f"{theirs}.{other}.weight")
    for part in "qkv":
        names = f"{ours}.attention.{part}_proj", f"{theirs}.self_attn.{part}_proj"
        yield from weight_and_bias(*names, bias=attention.bias)
    yield from weight_and_bias(
        f"{ours}.attention.out_proj", f"{theirs}.self_attn.o_proj", bias=out_bias
    )
    for part in ("q_norm", "k_norm") if attention.qk_norm is not None else ():
        yield Renamed(f"{ours}.attention.{part}.weight", f"{theirs}.self_attn.{part}.weight")
    for part in ("gate_proj", "up_proj", "down_proj"):
        names = f"{ours}.feedforward.{part}", f"{theirs}.mlp.{part}"
        yield from weight_and_bias(*names, bias=feedforward.bias)


def relative(model_type: str, **parts: Any) -> Family:
    """A family with the tensor names of LLaMA."""
    every: dict[str, Any] = {"maps": maps, "prefix": "model.", "ignored": IGNORED, "ties": TIES}
    return Family(model_types=(model_type,), **every | parts)
