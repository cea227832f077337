"""What LLaMA and its many relatives have in common: their tensors, and most of their keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from addnorm.convert.core.activations import activation_name, activation_of
from addnorm.convert.core.family import Family, Shaped, attention_of, decoder, layers
from addnorm.convert.core.maps import Map, Same, both
from addnorm.convert.core.rotary import longest
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import Activation, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import PositionConfig
from addnorm.nn.residuals import PreNormConfig

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
"""Their norms, by the names of ours."""


def read_attention(
    settings: Settings, *, kv_heads: int | None = None, d_head: int | None = None, **own: Any
) -> AttentionConfig:
    """LLaMA's, with what is a relative's `own`; `kv_heads`, `d_head` stand for missing keys."""
    d_model, n_heads = settings.need("hidden_size"), settings.need("num_attention_heads")
    share = None if d_model % n_heads else d_model // n_heads
    parts: dict[str, Any] = {
        "n_heads": n_heads,
        "n_kv_heads": settings.number("num_key_value_heads", missing=kv_heads) or n_heads,
        "d_head": settings.number("head_dim", missing=d_head) or share,
        "bias": False,
        "out_bias": False,
        "dropout": settings.get("attention_dropout", 0.0),
    }
    return AttentionConfig(**parts | own)


def read_eps(settings: Settings) -> float:
    """That of every norm."""
    return settings.get("rms_norm_eps", 1e-6)


def read_gated(
    settings: Settings, *, bias: bool = False, activation: Activation | None = None
) -> GatedFeedForwardConfig:
    """The feed-forward layer; by default with the activation under `hidden_act`."""
    return GatedFeedForwardConfig(
        d_ff=settings.need("intermediate_size"),
        activation=activation or activation_of(settings, "hidden_act", "silu"),
        bias=bias,
    )


def read_model(
    settings: Settings, attention: AttentionConfig, position: PositionConfig, **own: Any
) -> Shaped:
    """LLaMA with this attention and these positions, and whatever else is a relative's `own`."""
    parts: dict[str, Any] = {
        "d_model": settings.need("hidden_size"),
        "n_layers": settings.need("num_hidden_layers"),
        "max_len": settings.need("max_position_embeddings"),
        "position": position,
        "attention": attention,
        "norm": RMSNormConfig(eps=read_eps(settings)),
        "residual": PreNormConfig(),
        "embedding": EmbeddingConfig(scale="one"),
        "head": TokenHeadConfig(tied=settings.get("tie_word_embeddings", False)),
        "dropout": 0.0,
        "init": "gpt2",
    }
    if "feedforward" not in own:
        parts["feedforward"] = read_gated(settings)
    return Shaped(model=DecoderConfig(**parts | own), vocab_size=settings.need("vocab_size"))


def written_model(
    shaped: Shaped, model_type: str, architecture: str, *, activation: str = "hidden_act"
) -> Json:
    """The keys that all of them have; the name of the activation stands under that key."""
    model = decoder(shaped)
    attention, feedforward = attention_of(model), model.feedforward
    if not isinstance(feedforward, GatedFeedForwardConfig):
        raise InputError(f"{model_type} has no {feedforward.kind} feed-forward")
    heads = attention.heads(model.d_model)
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": shaped.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": feedforward.d_ff or 8 * model.d_model // 3,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": heads.n_kv_heads,
        "head_dim": heads.d_head,
        activation: activation_name(feedforward.activation),
        "max_position_embeddings": longest(model),
        "rms_norm_eps": model.norm.eps,
        "attention_dropout": attention.dropout,
        "tie_word_embeddings": model.head.tied,
    }


def check_divides(model: DecoderConfig, model_type: str) -> None:
    """Raise `InputError` for heads that do not divide the width, which transformers refuses."""
    if model.d_model % (n_heads := attention_of(model).n_heads):
        raise InputError(
            f"{model_type} needs a width that divides into heads: d_model = {model.d_model}, "
            f"n_heads = {n_heads}"
        )


def maps(shaped: Shaped, norms: Mapping[str, str] = PRE) -> Iterator[Map]:
    """Every tensor."""
    model = decoder(shaped)
    yield Same("embed.tokens.weight", "model.embed_tokens.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, model, norms))
    yield Same("stack.norm.weight", "model.norm.weight")
    if not model.head.tied:
        yield Same("head.weight", "lm_head.weight")


def _layer(i: int, model: DecoderConfig, norms: Mapping[str, str]) -> Iterator[Map]:
    attention, feedforward = attention_of(model), model.feedforward
    assert isinstance(feedforward, GatedFeedForwardConfig)
    out_bias = attention.bias if attention.out_bias is None else attention.out_bias
    ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
    for one, other in norms.items():
        yield Same(f"{ours}.{one}.weight", f"{theirs}.{other}.weight")
    for part in "qkv":
        names = f"{ours}.attention.{part}_proj", f"{theirs}.self_attn.{part}_proj"
        yield from both(*names, bias=attention.bias)
    yield from both(f"{ours}.attention.out_proj", f"{theirs}.self_attn.o_proj", bias=out_bias)
    for part in ("q_norm", "k_norm") if attention.qk_norm is not None else ():
        yield Same(f"{ours}.attention.{part}.weight", f"{theirs}.self_attn.{part}.weight")
    for part in ("gate_proj", "up_proj", "down_proj"):
        names = f"{ours}.feedforward.{part}", f"{theirs}.mlp.{part}"
        yield from both(*names, bias=feedforward.bias)


def relative(model_type: str, **parts: Any) -> Family:
    """A family whose tensors are named as those of LLaMA."""
    every: dict[str, Any] = {"maps": maps, "prefix": "model.", "ignored": IGNORED, "ties": TIES}
    return Family(model_types=(model_type,), **every | parts)
