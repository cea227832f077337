"""Nemotron-H: layers of one sublayer each, Mamba-2, attention, a feed-forward or experts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import FULL, MAX_LEN, cycle_of
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.maps import Renamed, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.granite_hybrid import NO_LIMITS, mamba_maps
from addnorm.convert.families.llama import LLAMA_MODEL, decoder, heads_of_keys
from addnorm.convert.families.qwen_delta import LINEAR
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig, LayerParts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.routers import SigmoidRouterConfig
from addnorm.parts import kind_of

P = TypeVar("P")

MLP, EXPERTS = "mlp", "moe"

NO_BOUND = 1e-9
"""A `time_step_min` that no step falls below; transformers takes its logarithm."""

KINDS = {LINEAR: LINEAR, "mamba": LINEAR, FULL: FULL, "attention": FULL, MLP: MLP, EXPERTS: EXPERTS}
"""The kinds of layers, by their current and older names."""

LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": EXPERTS}
"""The kinds of layers in the older `hybrid_override_pattern`."""

OF_EXPERTS = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group"),
    *("moe_shared_expert_intermediate_size", "norm_topk_prob", "routed_scaling_factor"),
)
"""The keys that matter for layers of experts alone."""


def _read_types(settings: Settings) -> list[str]:
    """The kind of each layer, from a list or an older text with a letter for each layer."""
    listed = settings.string_list("layers_block_type") or settings.string_list("layer_types")
    letters = settings.get("hybrid_override_pattern", "")
    name, kinds = "layers_block_type", KINDS
    if listed is None and letters:
        name, kinds, listed = "hybrid_override_pattern", LETTERS, [*letters]
    if not listed:
        raise settings.refuse(name, f"it lists the kind of each layer, of {[*kinds]}")
    if unknown := set(listed) - kinds.keys():
        raise settings.refuse(name, f"{sorted(unknown)[0]} is not one of {[*kinds]}")
    if (n := settings.optional_int("num_hidden_layers")) not in (None, len(listed)):
        raise settings.refuse("num_hidden_layers", f"{name} lists {len(listed)} layers, not {n}")
    return [kinds[kind] for kind in listed]


def _read_layers(settings: Settings) -> keys.Fields:
    """The only sublayer of each layer; the model itself has the feed-forward of dense layers."""
    nothing, types = NoFeedForwardConfig(), _read_types(settings)
    dense = FeedForwardConfig(
        d_ff=settings.optional_int("intermediate_size") or 21504,
        activation=settings.choose("mlp_hidden_act", keys.ACTIVATIONS, "relu2"),
        bias=settings.get("mlp_bias", False),
    )
    entries = {
        LINEAR: LayerConfig(attention=_read_mamba(settings), feedforward=nothing),
        FULL: LayerConfig(feedforward=nothing),
        MLP: LayerConfig(attention=NoMixerConfig()),
        EXPERTS: LayerConfig(
            attention=NoMixerConfig(),
            feedforward=_read_experts(settings, dense) if EXPERTS in types else None,
        ),
    }
    if EXPERTS not in types:
        settings.ignore(*OF_EXPERTS)
    return {
        "n_layers": len(types),
        "feedforward": dense,
        **cycle_of(entries[kind] for kind in types),
    }


def _read_mamba(settings: Settings) -> Mamba2Config:
    return Mamba2Config(
        n_heads=settings.optional_int("mamba_num_heads") or 128,
        d_head=settings.optional_int("mamba_head_dim") or 64,
        d_state=settings.optional_int("ssm_state_size") or 128,
        n_groups=settings.optional_int("n_groups", "mamba_n_groups") or 8,
        kernel_size=settings.optional_int("conv_kernel", "mamba_d_conv") or 4,
        kernel_bias=settings.get("use_conv_bias", True),
        bias=settings.get("use_bias", False),
        eps=settings.get("layer_norm_epsilon", 1e-5),
    )


def _read_experts(settings: Settings, dense: FeedForwardConfig) -> MixtureOfExpertsConfig:
    expert = replace(dense, d_ff=settings.optional_int("moe_intermediate_size") or 7688, bias=False)
    width = settings.optional_int("moe_shared_expert_intermediate_size") or 7688
    return MixtureOfExpertsConfig(
        n_experts=settings.optional_int("n_routed_experts") or 8,
        top_k=settings.optional_int("num_experts_per_tok") or 2,
        expert=expert,
        shared=replace(dense, d_ff=width),
        router=SigmoidRouterConfig(
            normalize=settings.get("norm_topk_prob", True),
            scale=settings.get("routed_scaling_factor", 1.0),
            n_groups=settings.optional_int("n_group") or 1,
            top_groups=settings.optional_int("topk_group") or 1,
        ),
    )


def _type_of(i: int, layer: LayerParts) -> str:
    match layer.attention, layer.feedforward:
        case Mamba2Config(), NoFeedForwardConfig():
            return LINEAR
        case AttentionConfig(), NoFeedForwardConfig():
            return FULL
        case NoMixerConfig(), FeedForwardConfig():
            return MLP
        case NoMixerConfig(), MixtureOfExpertsConfig():
            return EXPERTS
        case _:
            raise InputError(
                "this family has a single sublayer in each layer, Mamba-2, attention, an mlp "
                f"feed-forward or experts, and layer {i} has another or two"
            )


def _write_layers(spec: ModelSpec) -> Json:
    layers = spec.model.layers(spec.model.n_layers)
    written: Json = {"layers_block_type": [_type_of(i, layer) for i, layer in enumerate(layers)]}
    parts = [part for layer in layers for part in (layer.attention, layer.feedforward)]
    d_model = spec.model.d_model
    if mamba := _only(parts, Mamba2Config):
        written |= _write_mamba(mamba, d_model)
    if dense := _only(parts, FeedForwardConfig):
        written |= _write_dense(dense, d_model)
    if moe := _only(parts, MixtureOfExpertsConfig):
        written |= _write_experts(moe)
    return written


def _only(parts: Sequence[object], kind: type[P]) -> P | None:
    """The only part of this kind, if there is one. Raises `InputError` for several."""
    forms = {part for part in parts if isinstance(part, kind)}
    if len(forms) > 1:
        raise InputError(f"this family has one form of {kind_of(forms.pop())} in all its layers")
    return forms.pop() if forms else None


def _write_mamba(mamba: Mamba2Config, d_model: int) -> Json:
    return {
        "mamba_num_heads": mamba.n_heads,
        "mamba_head_dim": mamba.width(d_model),
        "ssm_state_size": mamba.d_state,
        "n_groups": mamba.n_groups,
        "conv_kernel": mamba.kernel_size,
        "use_conv_bias": mamba.kernel_bias,
        "use_bias": mamba.bias,
    }


def _write_dense(dense: FeedForwardConfig, d_model: int) -> Json:
    return {
        "intermediate_size": dense.d_ff or 4 * d_model,
        "mlp_hidden_act": keys.their_name(dense.activation, keys.ACTIVATIONS),
        "mlp_bias": dense.bias,
    }


def _write_experts(moe: MixtureOfExpertsConfig) -> Json:
    expert, shared, router = moe.expert, moe.shared, moe.router
    if not isinstance(router, SigmoidRouterConfig) or not isinstance(shared, FeedForwardConfig):
        raise InputError("this family has experts with a sigmoid router and a shared mlp")
    assert isinstance(expert, FeedForwardConfig)
    return {
        "n_routed_experts": moe.n_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": expert.d_ff,
        "moe_shared_expert_intermediate_size": shared.d_ff,
        "mlp_hidden_act": keys.their_name(shared.activation, keys.ACTIVATIONS),
        "mlp_bias": shared.bias,
        "norm_topk_prob": router.normalize,
        "routed_scaling_factor": router.scale,
        "n_group": router.n_groups,
        "topk_group": router.top_groups,
    }


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of Mamba-2, and of the corrections by which routers choose."""
    for i, layer in enumerate(spec.model.layers(spec.model.n_layers)):
        ours, theirs = f"stack.blocks.{i}", f"backbone.layers.{i}.mixer"
        yield from mamba_maps(layer, spec.model.d_model, f"{ours}.attention", theirs)
        yield Renamed(
            f"{ours}.feedforward.router.correction", f"{theirs}.gate.e_score_correction_bias"
        )


NEMOTRON_H = Family(
    model_type="nemotron_h",
    config=decoder(
        replace(LLAMA_MODEL, position=NoPositionConfig(), feedforward=FeedForwardConfig()),
        keys.VOCABULARY,
        MAX_LEN,
        keys.Size("d_model", "hidden_size"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        heads_of_keys(8),
        keys.Size("attention.d_head", "head_dim attention_head_dim", 128),
        keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
        keys.Computed(_read_layers, _write_layers),
        keys.Fixed("mamba_hidden_act", "silu", ("swish",)),
        keys.Fixed("time_step_limit", NO_LIMITS, ([0.0, inf], (0.0, inf))),
        keys.Fixed("moe_latent_size sliding_window", None),
        keys.Fixed("attention_bias mamba_proj_bias tie_word_embeddings", False),
        keys.Ignored("chunk_size expand hidden_dropout mamba_ssm_cache_dtype n_shared_experts"),
        keys.Ignored("moe_shared_expert_overlap num_logits_to_keep output_router_logits"),
        keys.Ignored("rescale_prenorm_residual residual_in_fp32 use_mamba_kernels"),
        # transformers bounds the steps of a prompt from below by it, and not those of later tokens.
        keys.Computed(lambda settings: {}, lambda spec: {"time_step_min": NO_BOUND}),
        keys.Ignored("time_step_min time_step_max time_step_floor"),
        keys.Ignored("num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern"),
        DecoderHead("NemotronH", tied=False),
    ),
    names={
        "embed.tokens": "backbone.embeddings",
        "stack.norm": "backbone.norm_f",
        "head": "lm_head",
        **within(
            "stack.blocks.*",
            "backbone.layers.*",
            {
                "attention_residual.norm": "norm",
                "feedforward_residual.norm": "norm",
                **{f"attention.{part}_proj": f"mixer.{part}_proj" for part in "qkv"},
                "attention.out_proj": "mixer.o_proj",
                "feedforward.router": "mixer.gate",
                **{f"feedforward.{part}_proj": f"mixer.{part}_proj" for part in ("up", "down")},
                **{
                    f"feedforward.{ours}.{part}_proj": f"mixer.{theirs}.{part}_proj"
                    for ours, theirs in (("experts.*", "experts.*"), ("shared", "shared_experts"))
                    for part in ("up", "down")
                },
            },
        ),
    },
    others=_maps,
    prefix="backbone.",
    renames=((r"^model\.", "backbone."),),
    left_aside=(r"mtp",),
    mixers=(Mamba2Config, NoMixerConfig),
)
"""NVIDIA 2025 (2504.03624)."""
