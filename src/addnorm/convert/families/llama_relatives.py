"""Tensor names and config keys shared by LLaMA and the families derived from it."""

from collections.abc import Iterator, Mapping

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, attention_of, layers
from addnorm.convert.core.maps import Renamed, TensorMap, renamed
from addnorm.convert.core.rotary import MAX_LEN, ROTARY
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead, head_weights
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
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
"""Hugging Face names of the norms by our names."""

LLAMA_ATTENTION = AttentionConfig(n_heads=1, bias=False, out_bias=False)

LLAMA_MODEL = DecoderConfig(
    position=RotaryConfig(),
    attention=LLAMA_ATTENTION,
    feedforward=GatedFeedForwardConfig(bias=False),
    norm=RMSNormConfig(),
    residual=PreNormConfig(),
    embedding=EmbeddingConfig(scale="one"),
    dropout=0.0,
    init="gpt2",
)

ACTIVATION = keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "silu")

ATTENTION_BIAS = keys.Value("attention.bias attention.out_bias", "attention_bias", False)


def _n_heads(settings: Settings) -> int:
    return settings.required_int("num_attention_heads")


def _share(settings: Settings) -> int | None:
    """The width of a head, or None if the heads do not divide the width of the model."""
    d_model, n_heads = settings.required_int("hidden_size"), _n_heads(settings)
    return None if d_model % n_heads else d_model // n_heads


def head_width(missing: int | None) -> keys.Size:
    """The key of the width of a head; `missing` stands for an absent key."""
    return keys.Size("attention.d_head", "head_dim", _share, missing)


def llama_keys(
    stem: str,
    *,
    kv_heads: int | None = None,
    d_head: int | None = None,
    tied: bool = False,
    activation: keys.Entry = ACTIVATION,
    position: keys.Entry = ROTARY,
) -> tuple[keys.Entry, ...]:
    """The keys of all relatives; `kv_heads`, `d_head` and `tied` stand for absent keys."""
    return (
        keys.VOCABULARY,
        MAX_LEN,
        position,
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        keys.Size("attention.n_kv_heads", "num_key_value_heads", _n_heads, kv_heads),
        head_width(d_head),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        keys.Size("feedforward.d_ff", "intermediate_size"),
        activation,
        keys.Value("norm.eps attention.qk_norm.eps", "rms_norm_eps", 1e-6),
        DecoderHead(stem, tied),
    )


def divides(model_type: str) -> keys.Entry:
    """The check that the heads divide the width of a written model, as transformers requires."""

    def check(spec: ModelSpec) -> Json:
        model = spec.model
        if model.d_model % (n_heads := attention_of(model).n_heads):
            raise InputError(
                f"{model_type} needs a width that divides into heads: d_model = {model.d_model}, "
                f"n_heads = {n_heads}"
            )
        return {}

    return keys.Computed(lambda settings: {}, check)


def maps(spec: ModelSpec, norms: Mapping[str, str]) -> Iterator[TensorMap]:
    """The maps of all tensors."""
    model = spec.model
    yield Renamed("embed.tokens.weight", "model.embed_tokens.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, model, norms))
    yield Renamed("stack.norm.weight", "model.norm.weight")
    yield from head_weights(model, "lm_head.weight")


def _layer(i: int, model: ModelConfig, norms: Mapping[str, str]) -> Iterator[TensorMap]:
    attention, feedforward = attention_of(model), model.feedforward
    assert isinstance(feedforward, GatedFeedForwardConfig)
    out_bias = attention.bias if attention.out_bias is None else attention.out_bias
    ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
    qk_norms = {} if attention.qk_norm is None else QK_NORMS
    yield from renamed(ours, theirs, {**norms, **qk_norms}, bias=False)
    yield from renamed(ours, theirs, QKV, bias=attention.bias)
    yield from renamed(ours, theirs, {"attention.out_proj": "self_attn.o_proj"}, bias=out_bias)
    yield from renamed(ours, theirs, GATED, bias=feedforward.bias)


QKV = {f"attention.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
QK_NORMS = {f"attention.{part}_norm": f"self_attn.{part}_norm" for part in "qk"}
GATED = {f"feedforward.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")}


def relative(
    model_type: str,
    model: DecoderConfig,
    entries: tuple[keys.Entry, ...],
    norms: Mapping[str, str] = PRE,
) -> Family:
    """A family with the tensor names of LLaMA."""
    table = keys.ConfigTable(model, entries)
    return Family(
        model_types=(model_type,),
        read=table.read,
        write=table.write,
        maps=lambda spec: maps(spec, norms),
        prefix="model.",
        ignored=IGNORED,
        ties=TIES,
    )
