"""Mixtures of experts with LLaMA's attention: Mixtral, Qwen 2 and 3 MoE."""

from dataclasses import replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    MAX_LEN,
    SLIDING,
    WINDOW_IF_USED,
    RotaryKeys,
    one_window,
    read_layer_types,
)
from addnorm.convert.core.expert_keys import SOME_LAYERS_DENSE, expert_names
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    ATTENTION_BIAS,
    LLAMA_ATTENTION,
    LLAMA_MODEL,
    NAMES,
    decoder,
    head_width,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.routers import SoftmaxRouterConfig

EXPERTS = MixtureOfExpertsConfig(
    expert=GatedFeedForwardConfig(bias=False), router=SoftmaxRouterConfig(normalize=True)
)

KEYS: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    MAX_LEN,
    keys.Size("d_model", "hidden_size"),
    keys.Size("n_layers", "num_hidden_layers"),
    keys.Size("attention.n_heads", "num_attention_heads"),
    keys.Value("attention.dropout", "attention_dropout", 0.0),
    keys.Choice("feedforward.expert.activation", "hidden_act", keys.ACTIVATIONS, "silu"),
    keys.Value("feedforward.balance", "router_aux_loss_coef", 0.001),
    keys.Ignored("output_router_logits"),
)


def _experts(router: str, experts: str, parts: tuple[str, str, str]) -> dict[str, str]:
    """Their names for the router and for each expert's gate, up and down matrices."""
    ours = ("gate_proj", "up_proj", "down_proj")
    return NAMES | within(
        "stack.blocks.*.feedforward",
        "model.layers.*",
        {
            "router": router,
            **{
                f"experts.*.{part}": f"{experts}.*.{name}"
                for part, name in zip(ours, parts, strict=True)
            },
        },
    )


MIXTRAL = relative(
    "mixtral",
    decoder(
        replace(LLAMA_MODEL, feedforward=EXPERTS),
        *KEYS,
        RotaryKeys(1000000.0),
        heads_of_keys(8),
        head_width(None),
        norm_eps("rms_norm_eps", 1e-5),
        one_window(),
        keys.Size("feedforward.n_experts", "num_local_experts num_experts", 8),
        keys.Size("feedforward.top_k", "num_experts_per_tok", 2),
        keys.Size("feedforward.expert.d_ff", "intermediate_size"),
        keys.Ignored("router_jitter_noise"),
        DecoderHead("Mixtral", tied=False),
    ),
    _experts("block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")),
)
"""Jiang et al. 2024 (2401.04088)."""

QWEN3_MOE = relative(
    "qwen3_moe",
    decoder(
        replace(
            LLAMA_MODEL,
            feedforward=EXPERTS,
            attention=replace(LLAMA_ATTENTION, qk_norm=RMSNormConfig()),
        ),
        *KEYS,
        RotaryKeys(),
        heads_of_keys(4),
        head_width(None),
        norm_eps("rms_norm_eps", 1e-6),
        ATTENTION_BIAS,
        WINDOW_IF_USED,
        keys.Ignored("max_window_layers"),
        keys.Size("feedforward.n_experts", "num_experts num_local_experts", 128),
        keys.Size("feedforward.top_k", "num_experts_per_tok", 8),
        keys.Size("feedforward.expert.d_ff", "moe_intermediate_size", 768),
        keys.Value("feedforward.router.normalize", "norm_topk_prob", False),
        SOME_LAYERS_DENSE,
        DecoderHead("Qwen3Moe", tied=False),
    ),
    _experts("mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
)
"""Yang et al. 2025."""


def _read_full_layers(settings: Settings) -> keys.Fields:
    settings.expect("use_sliding_window", False)
    settings.ignore("sliding_window", "max_window_layers")
    if SLIDING in (read_layer_types(settings, settings.required_int("num_hidden_layers")) or []):
        raise settings.refuse("layer_types", "use_sliding_window is false")
    return {}


QWEN2_MOE = relative(
    "qwen2_moe",
    decoder(
        replace(
            LLAMA_MODEL,
            feedforward=replace(
                EXPERTS, shared=GatedFeedForwardConfig(bias=False), shared_gate=True
            ),
            attention=replace(LLAMA_ATTENTION, bias=True),
        ),
        *KEYS,
        RotaryKeys(),
        heads_of_keys(16),
        head_width(None),
        norm_eps("rms_norm_eps", 1e-6),
        keys.Value("attention.bias", "qkv_bias", True),
        keys.Computed(_read_full_layers),
        keys.Choice("feedforward.shared.activation", "hidden_act", keys.ACTIVATIONS, "silu"),
        keys.Size("feedforward.n_experts", "num_experts num_local_experts", 60),
        keys.Size("feedforward.top_k", "num_experts_per_tok", 4),
        keys.Size("feedforward.expert.d_ff", "moe_intermediate_size", 1408),
        keys.Size("feedforward.shared.d_ff", "shared_expert_intermediate_size", 5632),
        keys.Value("feedforward.router.normalize", "norm_topk_prob", False),
        SOME_LAYERS_DENSE,
        DecoderHead("Qwen2Moe", tied=False),
    ),
    NAMES | within("stack.blocks.*", "model.layers.*", expert_names("shared_expert")),
)
"""Qwen Team 2024, with a gated expert that every token takes."""
