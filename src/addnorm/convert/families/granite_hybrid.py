"""Granite 4: Mamba-2 in most layers and attention in the others, with Granite's numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    ROTARY,
    cycle_of,
    rope_table,
)
from addnorm.convert.core.expert_keys import concatenated_experts
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.maps import Concatenated, Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    NAMES,
    decoder,
    divides,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.convert.families.llama_relatives import NUMBERS, SCALED, Divisor
from addnorm.convert.families.qwen_delta import LINEAR
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig, LayerParts
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.routers import SoftmaxRouterConfig
from addnorm.parts import kind_of

NO_LIMITS = [0.0, {"__float__": "Infinity"}]
"""All steps above zero, as transformers writes an infinite number."""

KINDS = {FULL: False, "attention": False, LINEAR: True, "mamba": True}
"""Whether layers of a type, by its current and its older name, are recurrent."""


def _read_layers(settings: Settings) -> keys.Fields:
    """The mixer of each layer; if no types are given, all are recurrent."""
    n = settings.required_int("num_hidden_layers")
    types = settings.string_list("layer_types") or settings.string_list("layers_block_type")
    types = [LINEAR] * n if types is None else types
    if len(types) != n:
        raise settings.refuse("layer_types", f"the model has {n} layers")
    if unknown := set(types) - KINDS.keys():
        raise settings.refuse("layer_types", f"{sorted(unknown)[0]} is not one of {[*KINDS]}")
    mamba = _read_mamba(settings)
    return cycle_of(LayerConfig(attention=mamba if KINDS[kind] else None) for kind in types)


def _read_mamba(settings: Settings) -> Mamba2Config:
    n_heads = settings.optional_int("mamba_n_heads") or 128
    settings.ignore("mamba_d_head", "mamba_chunk_size")
    width = (settings.optional_int("mamba_expand") or 2) * settings.required_int("hidden_size")
    if width % n_heads:
        raise settings.refuse("mamba_n_heads", f"{width} features do not divide into them")
    d_head = settings.tree.get("mamba_d_head")
    if d_head not in (None, "auto", width // n_heads):
        raise settings.refuse("mamba_d_head", f"heads have {width // n_heads} features")
    return Mamba2Config(
        n_heads=n_heads,
        d_head=width // n_heads,
        d_state=settings.optional_int("mamba_d_state") or 256,
        n_groups=settings.optional_int("mamba_n_groups") or 1,
        kernel_size=settings.optional_int("mamba_d_conv") or 4,
        kernel_bias=settings.get("mamba_conv_bias", True),
        bias=settings.get("mamba_proj_bias", False),
        eps=settings.get("rms_norm_eps", 1e-6),
    )


def _write_layers(spec: ModelSpec) -> Json:
    mixers = [layer.attention for layer in spec.model.layers(spec.model.n_layers)]
    mambas = {mixer for mixer in mixers if isinstance(mixer, Mamba2Config)}
    if len(mambas) > 1:
        raise InputError("this family has one form of Mamba-2 in all its layers")
    types = {"layer_types": [LINEAR if mixer in mambas else FULL for mixer in mixers]}
    if not mambas:
        return types | {"mamba_n_heads": 1}  # which divide any width
    mamba, d_model = mambas.pop(), spec.model.d_model
    d_head = mamba.width(d_model)
    if (width := mamba.n_heads * d_head) % d_model:
        raise InputError(f"this family has {width} features a multiple of d_model = {d_model}")
    return {
        **types,
        "mamba_expand": width // d_model,
        "mamba_n_heads": mamba.n_heads,
        "mamba_d_head": d_head,
        "mamba_d_state": mamba.d_state,
        "mamba_n_groups": mamba.n_groups,
        "mamba_d_conv": mamba.kernel_size,
        "mamba_conv_bias": mamba.kernel_bias,
        "mamba_proj_bias": mamba.bias,
    }


def _read_position(settings: Settings) -> keys.Fields:
    """The positions, which are none unless requested."""
    if settings.choose("position_embedding_type", {"rope": True, "nope": False}, "nope"):
        return ROTARY.read(settings)
    rope_table(settings)
    settings.ignore("rope_theta")
    return {"position": NoPositionConfig()}


def _write_position(spec: ModelSpec) -> Json:
    if isinstance(spec.model.position, NoPositionConfig):
        return {"position_embedding_type": "nope"}
    return {"position_embedding_type": "rope", **ROTARY.write(spec)}


def _read_feedforward(settings: Settings) -> keys.Fields:
    """A gated layer shared by all tokens, next to experts if there are any."""
    shared = settings.optional_int("shared_intermediate_size") or 1024
    gated = GatedFeedForwardConfig(d_ff=shared, bias=False)
    n, top_k = settings.get("num_local_experts", 8), settings.get("num_experts_per_tok", 2)
    d_ff = settings.optional_int("intermediate_size") or 11008
    balance = settings.get("router_aux_loss_coef", 0.001)
    if n == 0:
        return {"feedforward": gated}
    return {
        "feedforward": MixtureOfExpertsConfig(
            n_experts=n,
            top_k=top_k,
            expert=replace(gated, d_ff=d_ff),
            shared=gated,
            router=SoftmaxRouterConfig(normalize=True),
            balance=balance,
        )
    }


def _write_feedforward(spec: ModelSpec) -> Json:
    part = spec.model.feedforward
    if isinstance(part, GatedFeedForwardConfig):
        return {"num_local_experts": 0, "shared_intermediate_size": part.d_ff}
    if not isinstance(part, MixtureOfExpertsConfig) or part.shared is None:
        raise InputError(f"this family has no {kind_of(part)} feed-forward without a shared expert")
    return {
        "num_local_experts": part.n_experts,
        "num_experts_per_tok": part.top_k,
        "intermediate_size": getattr(part.expert, "d_ff", None),
        "shared_intermediate_size": getattr(part.shared, "d_ff", None),
        "router_aux_loss_coef": part.balance,
    }


OF_MAMBA: Mapping[str, str] = {
    "short.conv.weight": "conv1d.weight",
    "short.conv.bias": "conv1d.bias",
    "log_speed": "A_log",
    "step_bias": "dt_bias",
    "skip": "D",
    "norm.weight": "norm.weight",
    "out_proj.weight": "out_proj.weight",
    "out_proj.bias": "out_proj.bias",
}


def mamba_maps(layer: LayerParts, d_model: int, ours: str, theirs: str) -> Iterator[TensorMap]:
    """The maps of a layer's Mamba-2, if it has one, whose projections share a matrix."""
    if not isinstance(mamba := layer.attention, Mamba2Config):
        return
    for name, other in OF_MAMBA.items():
        yield Renamed(f"{ours}.{name}", f"{theirs}.{other}")
    width, shared = mamba.n_heads * mamba.width(d_model), mamba.n_groups * mamba.d_state
    for kind in ("weight", "bias"):
        names = (f"{ours}.{part}_proj.{kind}" for part in ("gate", "v", "k", "q", "step"))
        sizes = (width, width, shared, shared, mamba.n_heads)
        yield Concatenated(tuple(names), f"{theirs}.in_proj.{kind}", sizes)


_EXPERTS = concatenated_experts(
    "model.layers.*.block_sparse_moe.input_linear.weight",
    "model.layers.*.block_sparse_moe.output_linear.weight",
)


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of Mamba-2, in one joint matrix, and of the shared layer, with gate and up joint."""
    yield from _EXPERTS(spec)
    for i, layer in enumerate(spec.model.layers(spec.model.n_layers)):
        ours, theirs = f"stack.blocks.{i}", f"model.layers.{i}"
        yield from mamba_maps(layer, spec.model.d_model, f"{ours}.attention", f"{theirs}.mamba")
        part, name = layer.feedforward, f"{ours}.feedforward"
        if isinstance(part, MixtureOfExpertsConfig):
            part, name = part.shared, f"{name}.shared"
        d_ff = getattr(part, "d_ff", None) or 8 * spec.model.d_model // 3
        names = f"{name}.gate_proj.weight", f"{name}.up_proj.weight"
        yield Concatenated(names, f"{theirs}.shared_mlp.input_linear.weight", (d_ff, d_ff))
        yield Renamed(f"{name}.down_proj.weight", f"{theirs}.shared_mlp.output_linear.weight")


GRANITE_HYBRID = relative(
    "granitemoehybrid",
    decoder(
        SCALED,
        keys.VOCABULARY,
        MAX_LEN,
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        heads_of_keys(),
        divides("granitemoehybrid"),
        ATTENTION_BIAS,
        norm_eps("rms_norm_eps", 1e-6),
        *NUMBERS,
        keys.Computed(_read_position, _write_position),
        keys.Computed(_read_feedforward, _write_feedforward),
        keys.Computed(_read_layers, _write_layers),
        keys.Fixed("hidden_act", "silu", ("swish",)),
        keys.Fixed("time_step_limit", NO_LIMITS, ([0.0, inf], (0.0, inf))),
        keys.Fixed("normalization_function", "rmsnorm"),
        keys.Ignored("output_router_logits init_method"),
        DecoderHead("GraniteMoeHybrid", tied=False),
        Divisor("head.scale", "logits_scaling"),
    ),
    NAMES
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {"feedforward.router": "block_sparse_moe.router.layer"},
    ),
    others=_maps,
    mixers=(Mamba2Config,),
    renames=(
        (r"\.block_sparse_moe\.experts\.gate_up_proj$", ".block_sparse_moe.input_linear.weight"),
        (r"\.block_sparse_moe\.experts\.down_proj$", ".block_sparse_moe.output_linear.weight"),
        (r"\.block_sparse_moe\.router\.weight$", ".block_sparse_moe.router.layer.weight"),
    ),
    classifies=(),
)
"""IBM 2025; Mamba-2 is that of Dao & Gu 2024."""
