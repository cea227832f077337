"""DeepSeek V2 and V3, with latent attention; GLM 4.5, with V3's experts and plain attention."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.ahead import AHEAD_OF_DEEPSEEK
from addnorm.convert.core.attention_keys import MAX_LEN, RotaryKeys, rope_table
from addnorm.convert.core.expert_keys import (
    SharedExpertKeys,
    corrections,
    expert_names,
    first_layers_dense,
)
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.maps import AlternatingHeads, Renamed, TensorMap, within
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
from addnorm.errors import InputError
from addnorm.nn.attention import LatentAttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig, YaRNScaling
from addnorm.nn.routers import SigmoidRouterConfig, SoftmaxRouterConfig
from addnorm.parts import kind_of

EXPERTS = MixtureOfExpertsConfig(
    expert=GatedFeedForwardConfig(bias=False),
    shared=GatedFeedForwardConfig(bias=False),
    router=SigmoidRouterConfig(normalize=True),
)


def _latent_of(spec: ModelSpec) -> LatentAttentionConfig:
    if not isinstance(spec.model.attention, LatentAttentionConfig):
        raise InputError(f"this family has latent attention, not {kind_of(spec.model.attention)}")
    return spec.model.attention


@dataclass(frozen=True)
class _RotaryKeys(RotaryKeys):
    """Rotary positions of latent attention; YaRN also multiplies scores by `m²`.

    `m = 0.1 · mscale_all_dim · ln(s) + 1` (DeepSeek-AI 2024a, §3.1.4).
    """

    def read(self, settings: Settings) -> keys.Fields:
        table = rope_table(settings)
        all_dim = table.optional_float("mscale_all_dim")
        fields = super().read(settings)
        scaling = fields["position"].scaling
        if not all_dim or not isinstance(scaling, YaRNScaling):
            return fields
        width = sum(settings.get(key, default) for key, default in WIDTHS.items())
        return {**fields, "attention.score.factor": _scale(width, scaling.factor, all_dim)}

    def write(self, spec: ModelSpec) -> Json:
        written, attention = super().write(spec), _latent_of(spec)
        factor, position = attention.score.factor, spec.model.position
        if factor is None:
            return written
        scaling = position.scaling if isinstance(position, RotaryConfig) else None
        if not isinstance(scaling, YaRNScaling) or scaling.factor == 1:
            raise InputError(
                "this family scales scores by another factor with yarn positions alone"
            )
        width = attention.width(spec.model.d_model)
        near = (math.sqrt(factor * math.sqrt(width)) - 1) / (0.1 * math.log(scaling.factor))
        numbers = (*(round(near, digits) for digits in (3, 6, 9)), near)
        all_dim = next((n for n in numbers if _scale(width, scaling.factor, n) == factor), near)
        more = {"mscale_all_dim": all_dim}
        return {
            **written,
            **{key: written[key] | more for key in ("rope_parameters", "rope_scaling")},
        }


def _scale(width: int, factor: float, all_dim: float) -> float:
    m = 0.1 * all_dim * math.log(factor) + 1.0
    return width**-0.5 * m * m


WIDTHS = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}

LATENT = LatentAttentionConfig(n_heads=1, norm=RMSNormConfig(eps=1e-6))

MODEL = replace(
    LLAMA_MODEL,
    attention=LATENT,
    feedforward=EXPERTS,
    position=RotaryConfig(layout="interleaved"),
)

BODY: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    MAX_LEN,
    keys.Size("d_model", "hidden_size"),
    keys.Size("n_layers", "num_hidden_layers"),
    keys.Size("attention.n_heads", "num_attention_heads"),
    keys.Value("attention.dropout", "attention_dropout", 0.0),
    keys.Choice(
        "feedforward.expert.activation feedforward.shared.activation",
        "hidden_act",
        keys.ACTIVATIONS,
        "silu",
    ),
    keys.Size("feedforward.expert.d_ff", "moe_intermediate_size"),
    keys.Ignored("output_router_logits ep_size"),
    # The file says by its tensors whether it has these layers.
    keys.layers_ahead("num_nextn_predict_layers", "num_mtp_layers"),
    keys.Value("feedforward.balance", "aux_loss_alpha", 0.001),
    keys.Ignored("seq_aux"),
    keys.Fixed("moe_layer_freq", 1),
)

OF_LATENT: tuple[keys.Entry, ...] = (
    keys.Size("attention.rank", "kv_lora_rank", 512),
    keys.Size("attention.query_rank", "q_lora_rank", None, 1536),
    keys.Size("attention.d_content", "qk_nope_head_dim", 128),
    keys.Size("attention.d_position", "qk_rope_head_dim", 64),
    keys.Size("attention.d_value", "v_head_dim", 128),
    keys.Value("attention.bias", "attention_bias", False),
    keys.Repeated("attention.n_heads", "num_key_value_heads"),
    keys.Ignored("head_dim qk_head_dim"),
    norm_eps("rms_norm_eps", 1e-6),
)

LATENT_NAMES = {
    "attention.q_down_proj": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_up_proj": "self_attn.q_b_proj",
    "attention.kv_down_proj": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm",
}


def _latent_maps(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of latent attention: keys and values alternate by head in one matrix."""
    attention = _latent_of(spec)
    for i in range(spec.model.n_layers):
        ours, theirs = f"stack.blocks.{i}.attention", f"model.layers.{i}.self_attn"
        yield AlternatingHeads(
            (f"{ours}.k_up_proj.weight", f"{ours}.v_up_proj.weight"),
            f"{theirs}.kv_b_proj.weight",
            (attention.d_content, attention.d_value),
        )
        if attention.query_rank is None:
            yield Renamed(f"{ours}.q_up_proj.weight", f"{theirs}.q_proj.weight")
    yield from corrections(spec)


def _groups(settings: Settings) -> keys.Fields:
    """The expert groups, used only by the method `group_limited_greedy`."""
    methods = {"greedy": False, "group_limited_greedy": True}
    used = settings.choose("topk_method", methods, "greedy")
    n, best = settings.optional_int("n_group"), settings.optional_int("topk_group")
    if not used:
        return {}
    return {"feedforward.router.n_groups": n or 1, "feedforward.router.top_groups": best or 1}


def _write_groups(spec: ModelSpec) -> Json:
    router = getattr(spec.model.feedforward, "router", SoftmaxRouterConfig())
    if router.n_groups == 1:
        return {"topk_method": "greedy", "n_group": None, "topk_group": None}
    method = {"topk_method": "group_limited_greedy"}
    return {**method, "n_group": router.n_groups, "topk_group": router.top_groups}


DEEPSEEK_V2 = relative(
    "deepseek_v2",
    decoder(
        replace(MODEL, feedforward=replace(EXPERTS, router=SoftmaxRouterConfig(normalize=False))),
        *BODY,
        *OF_LATENT,
        _RotaryKeys(layout="interleaved"),
        first_layers_dense(0),
        SharedExpertKeys(2),
        keys.Size("feedforward.n_experts", "n_routed_experts", 64),
        keys.Size("feedforward.top_k", "num_experts_per_tok"),
        keys.Value("feedforward.router.scale", "routed_scaling_factor", 1.0),
        keys.Computed(_groups, _write_groups),
        keys.Fixed("norm_topk_prob", False),
        keys.Fixed("scoring_func", "softmax"),
        keys.Fixed("mlp_bias", False),
        DecoderHead("DeepseekV2", tied=False),
    ),
    NAMES
    | within("stack.blocks.*", "model.layers.*", LATENT_NAMES | expert_names("shared_experts")),
    others=_latent_maps,
    classifies=("sequence",),
)
"""DeepSeek-AI 2024a (2405.04434)."""

SIGMOID: tuple[keys.Entry, ...] = (
    keys.Value("feedforward.router.normalize", "norm_topk_prob", True),
    keys.Fixed("scoring_func", "sigmoid"),
    keys.Fixed("topk_method", "noaux_tc"),
)


def _sigmoid(
    *, experts: int, top_k: int, scale: float, groups: tuple[int, int]
) -> tuple[keys.Entry, ...]:
    """The keys for V3's router, with defaults for absent ones."""
    return (
        *SIGMOID,
        keys.Size("feedforward.n_experts", "n_routed_experts num_local_experts", experts),
        keys.Size("feedforward.top_k", "num_experts_per_tok", top_k),
        keys.Value("feedforward.router.scale", "routed_scaling_factor", scale),
        keys.Size("feedforward.router.n_groups", "n_group", groups[0]),
        keys.Size("feedforward.router.top_groups", "topk_group", groups[1]),
    )


DEEPSEEK_V3 = relative(
    "deepseek_v3",
    decoder(
        MODEL,
        *BODY,
        *OF_LATENT,
        _RotaryKeys(layout="interleaved"),
        keys.Choice(
            "position.layout", "rope_interleave", {True: "interleaved", False: "half"}, True
        ),
        first_layers_dense(3),
        SharedExpertKeys(1),
        *_sigmoid(experts=256, top_k=8, scale=2.5, groups=(8, 4)),
        DecoderHead("DeepseekV3", tied=False),
    ),
    NAMES
    | within("stack.blocks.*", "model.layers.*", LATENT_NAMES | expert_names("shared_experts")),
    others=_latent_maps,
    ahead=AHEAD_OF_DEEPSEEK,
    left_aside=(r"model\.layers\.61",),
)
"""DeepSeek-AI 2024b (2412.19437)."""

GLM4_MOE = relative(
    "glm4_moe",
    decoder(
        replace(LLAMA_MODEL, attention=LLAMA_ATTENTION, feedforward=EXPERTS),
        *BODY,
        RotaryKeys(fraction=0.5),
        heads_of_keys(8),
        head_width(None),
        norm_eps("rms_norm_eps", 1e-5),
        keys.Value("attention.bias", "attention_bias", False),
        keys.Choice(
            "attention.qk_norm", "use_qk_norm", {True: RMSNormConfig(), False: None}, False
        ),
        first_layers_dense(1),
        SharedExpertKeys(1),
        *_sigmoid(experts=128, top_k=8, scale=1.0, groups=(1, 1)),
        DecoderHead("Glm4Moe", tied=False),
    ),
    NAMES | within("stack.blocks.*", "model.layers.*", expert_names("shared_experts")),
    others=corrections,
    ahead=AHEAD_OF_DEEPSEEK,
    left_aside=(r"model\.layers\.(46|92)",),
    classifies=(),
)
"""GLM 4.5: Z.ai 2025 (2508.06471)."""
