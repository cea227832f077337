"""Qwen3-Next and Qwen3.5: the gated delta rule in most layers, gated attention in the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.ahead import AHEAD_OF_QWEN
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    RotaryKeys,
    cycle_of,
    read_layer_types,
)
from addnorm.convert.core.expert_keys import (
    SOME_LAYERS_DENSE,
    concatenated_experts,
    expert_names,
)
from addnorm.convert.core.family import ModelSpec, attention_of
from addnorm.convert.core.maps import (
    AlternatingHeads,
    Concatenated,
    Renamed,
    TensorMap,
    within,
)
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
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
from addnorm.convert.families.mixtral import EXPERTS as SPARSE
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import GatedOutputConfig
from addnorm.nn.delta import DeltaHeads, GatedDeltaConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.norms import OffsetRMSNormConfig, RMSNormConfig

LINEAR = "linear_attention"

MODEL = replace(
    LLAMA_MODEL,
    attention=replace(
        LLAMA_ATTENTION, qk_norm=OffsetRMSNormConfig(), output=GatedOutputConfig(per="feature")
    ),
    norm=OffsetRMSNormConfig(),
)

EXPERTS = replace(SPARSE, shared=GatedFeedForwardConfig(bias=False), shared_gate=True)


@dataclass(frozen=True)
class HybridKeys:
    """The mixer of each layer, by default attention in every fourth."""

    dense: keys.Entry | None = None

    def read(self, settings: Settings) -> keys.Fields:
        n, every = settings.required_int("num_hidden_layers"), "full_attention_interval"
        period = settings.optional_int(every) or 4
        types = read_layer_types(settings, n, (FULL, LINEAR)) or [
            LINEAR if (i + 1) % period else FULL for i in range(n)
        ]
        pattern = () if self.dense is None else self.dense.read(settings)["layer_pattern"]
        delta = _read_delta(settings)
        return cycle_of(
            replace(
                pattern[i % len(pattern)] if pattern else LayerConfig(),
                attention=delta if kind == LINEAR else None,
            )
            for i, kind in enumerate(types)
        )

    def write(self, spec: ModelSpec) -> Json:
        mixers = [layer.attention for layer in spec.model.layers(spec.model.n_layers)]
        deltas = {mixer for mixer in mixers if isinstance(mixer, GatedDeltaConfig)}
        if len(deltas) > 1:
            raise InputError("this family has one form of the gated delta rule in all its layers")
        types = [LINEAR if isinstance(mixer, GatedDeltaConfig) else FULL for mixer in mixers]
        sizes = {} if not deltas else _written(deltas.pop(), spec.model.d_model)
        dense = {} if self.dense is None else self.dense.write(spec)
        return {"layer_types": types, **sizes, **dense}


def _read_delta(settings: Settings) -> GatedDeltaConfig:
    def size(key: str, missing: int) -> int:
        return settings.optional_int(f"linear_{key}") or missing

    return GatedDeltaConfig(
        n_heads=size("num_value_heads", 32),
        n_key_heads=size("num_key_heads", 16),
        d_key=size("key_head_dim", 128),
        d_value=size("value_head_dim", 128),
        kernel_size=size("conv_kernel_dim", 4),
        norm=RMSNormConfig(eps=settings.get("rms_norm_eps", 1e-6)),
    )


def _written(delta: GatedDeltaConfig, d_model: int) -> Json:
    heads = delta.heads(d_model)
    return {
        "linear_num_value_heads": heads.n_heads,
        "linear_num_key_heads": heads.n_key_heads,
        "linear_key_head_dim": heads.d_key,
        "linear_value_head_dim": heads.d_value,
        "linear_conv_kernel_dim": delta.kernel_size,
    }


Projections = Callable[[str, str, DeltaHeads], Iterator[TensorMap]]
"""The maps of the projections of a layer, by our and their names of it."""


def by_key_head(ours: str, theirs: str, heads: DeltaHeads) -> Iterator[TensorMap]:
    """Qwen3-Next's maps: query, key, value and gates in one matrix, grouped by key head."""
    n = heads.n_heads // heads.n_key_heads
    width = n * heads.d_value
    names = tuple(f"{ours}.{part}_proj.weight" for part in ("q", "k", "v", "gate"))
    widths = (heads.d_key, heads.d_key, width, width)
    yield AlternatingHeads(names, f"{theirs}.in_proj_qkvz.weight", widths)
    names = tuple(f"{ours}.{part}_proj.weight" for part in ("rate", "decay"))
    yield AlternatingHeads(names, f"{theirs}.in_proj_ba.weight", (n, n))


def by_part(ours: str, theirs: str, heads: DeltaHeads) -> Iterator[TensorMap]:
    """Qwen3.5's maps: queries, keys and values in one matrix, every other part in its own."""
    n_keys, n_values = heads.n_key_heads * heads.d_key, heads.n_heads * heads.d_value
    names = tuple(f"{ours}.{part}_proj.weight" for part in "qkv")
    yield Concatenated(names, f"{theirs}.in_proj_qkv.weight", (n_keys, n_keys, n_values))
    for part, name in (("gate", "z"), ("rate", "b"), ("decay", "a")):
        yield Renamed(f"{ours}.{part}_proj.weight", f"{theirs}.in_proj_{name}.weight")


OF_DELTA = {
    "short.conv.weight": "conv1d.weight",
    "log_speed": "A_log",
    "decay_bias": "dt_bias",
    "norm.weight": "norm.weight",
    "out_proj.weight": "out_proj.weight",
}


def _maps(projections: Projections) -> Callable[[ModelSpec], Iterator[TensorMap]]:
    """The maps of the delta rule, and of attention with queries and gates alternating by head."""

    def maps(spec: ModelSpec) -> Iterator[TensorMap]:
        for i, layer in enumerate(spec.model.layers(spec.model.n_layers)):
            ours, theirs = f"stack.blocks.{i}.attention", f"model.layers.{i}"
            if isinstance(layer.attention, GatedDeltaConfig):
                linear = f"{theirs}.linear_attn"
                for name, other in OF_DELTA.items():
                    yield Renamed(f"{ours}.{name}", f"{linear}.{other}")
                yield from projections(ours, linear, layer.attention.heads(spec.model.d_model))
            else:
                names = f"{ours}.q_proj.weight", f"{ours}.output.proj.weight"
                width = attention_of(layer).heads(spec.model.d_model).d_head
                yield AlternatingHeads(names, f"{theirs}.self_attn.q_proj.weight", (width, width))

    return maps


M_ROPE = ("mrope_section", "mrope_interleaved")
"""Keys of rotary positions that concern the three positions of an image."""

BODY: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    MAX_LEN,
    keys.Size("d_model", "hidden_size"),
    keys.Size("n_layers", "num_hidden_layers"),
    keys.Size("attention.n_heads", "num_attention_heads"),
    keys.Value("attention.dropout", "attention_dropout", 0.0),
    RotaryKeys(fraction=0.25, ignored=M_ROPE),
    head_width(256),
    norm_eps("rms_norm_eps", 1e-6),
    keys.Fixed("attention_bias", False),
    keys.Fixed("hidden_act", "silu", ("swish",)),
    keys.Fixed("attn_output_gate", True),
    keys.Ignored("mamba_ssm_dtype"),
    keys.Fixed("mtp_use_dedicated_embeddings", False),
    keys.layers_ahead("mtp_num_hidden_layers"),
)

OF_EXPERTS: tuple[keys.Entry, ...] = (
    keys.Size("feedforward.expert.d_ff", "moe_intermediate_size", 512),
    keys.Size("feedforward.shared.d_ff", "shared_expert_intermediate_size", 512),
    keys.Value("feedforward.balance", "router_aux_loss_coef", 0.001),
    keys.Ignored("output_router_logits"),
)

MIXERS = (GatedDeltaConfig,)
MTP = ("mtp",)
"""Layers that predict further tokens, of a model that ours cannot read them for."""

QWEN3_NEXT = relative(
    "qwen3_next",
    decoder(
        replace(MODEL, feedforward=EXPERTS),
        *BODY,
        *OF_EXPERTS,
        heads_of_keys(2),
        keys.Size("feedforward.n_experts", "num_experts num_local_experts", 512),
        keys.Size("feedforward.top_k", "num_experts_per_tok", 10),
        keys.Value("feedforward.router.normalize", "norm_topk_prob", True),
        HybridKeys(SOME_LAYERS_DENSE),
        DecoderHead("Qwen3Next", tied=False),
    ),
    NAMES | within("stack.blocks.*", "model.layers.*", expert_names("shared_expert")),
    others=_maps(by_key_head),
    mixers=MIXERS,
    ahead=AHEAD_OF_QWEN,
    left_aside=MTP,
)
"""Qwen Team 2025."""

QWEN3_5 = relative(
    "qwen3_5_text",
    decoder(
        MODEL,
        *BODY,
        heads_of_keys(4),
        keys.Size("feedforward.d_ff", "intermediate_size"),
        HybridKeys(),
        DecoderHead("Qwen3_5", tied=False),
    ),
    others=_maps(by_part),
    mixers=MIXERS,
    ahead=AHEAD_OF_QWEN,
    left_aside=MTP,
    classifies=(),
)
"""Qwen Team 2026."""

QWEN3_5_MOE = relative(
    "qwen3_5_moe_text",
    decoder(
        replace(MODEL, feedforward=EXPERTS),
        *BODY,
        *OF_EXPERTS,
        heads_of_keys(2),
        keys.Size("feedforward.n_experts", "num_experts num_local_experts", 256),
        keys.Size("feedforward.top_k", "num_experts_per_tok", 8),
        HybridKeys(),
        DecoderHead("Qwen3_5Moe", tied=False),
    ),
    NAMES | within("stack.blocks.*", "model.layers.*", expert_names("shared_expert")),
    others=_maps(by_part),
    layouts=concatenated_experts(
        "model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj"
    ),
    mixers=MIXERS,
    ahead=AHEAD_OF_QWEN,
    left_aside=MTP,
    classifies=(),
)
"""Qwen Team 2026, with a gated expert that every token takes; published with experts in one."""
