"""LFM2: gated short convolutions in some layers, attention in the others."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    RotaryKeys,
    cycle_of,
    read_layer_types,
)
from addnorm.convert.core.family import ModelSpec, feedforward_of
from addnorm.convert.core.maps import Concatenated, Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead, decoder_head
from addnorm.convert.families.llama import (
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    NAMES,
    decoder,
    head_width,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig

CONV = "conv"


@dataclass(frozen=True)
class LayerKeys:
    """The mixer of each layer, by `layer_types` or the older `full_attn_idxs`."""

    def read(self, settings: Settings) -> keys.Fields:
        n = settings.required_int("num_hidden_layers")
        settings.ignore("full_attn_idxs")
        listed = settings.tree.get("full_attn_idxs")
        attending = range(n) if listed is None else listed
        if not isinstance(attending, list | range):
            raise settings.refuse("full_attn_idxs", "it lists the numbers of layers")
        types = read_layer_types(settings, n, (FULL, CONV)) or [
            FULL if i in attending else CONV for i in range(n)
        ]
        conv = GatedConvolutionConfig(
            kernel_size=settings.optional_int("conv_L_cache") or 3,
            bias=settings.get("conv_bias", False),
        )
        return cycle_of(LayerConfig(attention=conv if kind == CONV else None) for kind in types)

    def write(self, spec: ModelSpec) -> Json:
        mixers = [layer.attention for layer in spec.model.layers(spec.model.n_layers)]
        convs = {mixer for mixer in mixers if isinstance(mixer, GatedConvolutionConfig)}
        if len(convs) > 1:
            raise InputError("this family has one form of gated convolutions in all its layers")
        types = [CONV if isinstance(mixer, GatedConvolutionConfig) else FULL for mixer in mixers]
        conv = convs.pop() if convs else GatedConvolutionConfig()
        return {
            "layer_types": types,
            "conv_L_cache": conv.kernel_size,
            "conv_bias": conv.bias,
        }


def _read_width(settings: Settings) -> keys.Fields:
    """The inner width: as given, or two thirds of it, rounded up to a multiple."""
    width = settings.optional_int("block_ff_dim", "intermediate_size") or 12288
    of = settings.optional_int("block_multiple_of") or 256
    factor = settings.get("block_ffn_dim_multiplier", 1.0)
    if settings.get("block_auto_adjust_ff_dim", True):
        width = int(factor * int(2 * width / 3))
        width = of * -(-width // of)
    return {"feedforward.d_ff": width}


def _write_width(spec: ModelSpec) -> Json:
    width = feedforward_of(spec.model, GatedFeedForwardConfig).d_ff
    return {
        "intermediate_size": width,
        "block_ff_dim": width,
        "block_auto_adjust_ff_dim": False,
    }


def _convolutions(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of gated convolutions, whose gates and inputs share one projection."""
    d_model = spec.model.d_model
    for i, layer in enumerate(spec.model.layers(spec.model.n_layers)):
        if not isinstance(layer.attention, GatedConvolutionConfig):
            continue
        ours, theirs = f"stack.blocks.{i}.attention", f"model.layers.{i}.conv"
        for kind in ("weight", "bias"):
            parts = ("in_gate_proj", "out_gate_proj", "in_proj")
            names = tuple(f"{ours}.{part}.{kind}" for part in parts)
            yield Concatenated(names, f"{theirs}.in_proj.{kind}", (d_model,) * 3)
            yield Renamed(f"{ours}.short.conv.{kind}", f"{theirs}.conv.{kind}")
            yield Renamed(f"{ours}.out_proj.{kind}", f"{theirs}.out_proj.{kind}")


def _read_head(settings: Settings) -> keys.Fields:
    """The head; the older `tie_embedding` takes precedence over `tie_word_embeddings`."""
    tied = settings.get("tie_word_embeddings", True)
    return {"head": decoder_head(settings, tied=settings.get("tie_embedding", tied))}


LFM2 = relative(
    "lfm2",
    decoder(
        replace(LLAMA_MODEL, attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig())),
        keys.VOCABULARY,
        MAX_LEN,
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        heads_of_keys(8),
        head_width(None),
        RotaryKeys(1000000.0),
        norm_eps("norm_eps", 1e-5),
        keys.Computed(_read_width, _write_width),
        LayerKeys(),
        keys.Ignored("block_dim block_mlp_init_scale block_norm_eps block_out_init_scale"),
        keys.Ignored("block_use_swiglu block_use_xavier_init conv_dim conv_dim_out"),
        keys.Ignored("conv_use_xavier_init num_heads use_pos_enc theta"),
        keys.Computed(_read_head, DecoderHead("Lfm2", tied=True).write),
    ),
    NAMES
    | {"stack.norm": "model.embedding_norm"}
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {
            "attention.q_norm": "self_attn.q_layernorm",
            "attention.k_norm": "self_attn.k_layernorm",
            "attention.out_proj": "self_attn.out_proj",
            "attention_residual.norm": "operator_norm",
            "feedforward_residual.norm": "ffn_norm",
            "feedforward.gate_proj": "feed_forward.w1",
            "feedforward.up_proj": "feed_forward.w3",
            "feedforward.down_proj": "feed_forward.w2",
        },
    ),
    others=_convolutions,
    mixers=(GatedConvolutionConfig,),
    classifies=(),
)
"""Liquid AI 2025 (2511.23404)."""
