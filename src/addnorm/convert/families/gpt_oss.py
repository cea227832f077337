"""GPT-OSS: attention sinks, windows in every other layer, and a mixture of clamped experts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    FULL,
    MAX_LEN,
    SLIDING,
    RotaryKeys,
    read_layer_types,
    read_windows,
    rope_table,
    write_windows,
)
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.maps import StackedExperts, TensorMap, within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    LLAMA_MODEL,
    NAMES,
    decoder,
    head_width,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.errors import InputError
from addnorm.nn.attention import AttentionConfig, SinkCoreConfig
from addnorm.nn.feedforward import ClampedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.positions import RotaryConfig, YaRNScaling
from addnorm.nn.routers import SoftmaxRouterConfig
from addnorm.parts import kind_of

MODEL = replace(
    LLAMA_MODEL,
    attention=AttentionConfig(n_heads=1, core=SinkCoreConfig()),
    feedforward=MixtureOfExpertsConfig(
        expert=ClampedFeedForwardConfig(),
        router=SoftmaxRouterConfig(bias=True, normalize=True),
    ),
)


@dataclass(frozen=True)
class _RotaryKeys(RotaryKeys):
    """Rotary keys; by default those of the published models, for 131,072 tokens."""

    def read(self, settings: Settings) -> keys.Fields:
        if rope_table(settings).tree:
            return super().read(settings)
        scaling = YaRNScaling(factor=32.0, original_max_len=4096, truncate=False)
        theta = settings.get("rope_theta", self.theta)
        return {"position": RotaryConfig(theta=theta, scaling=scaling)}


def _read_layers(settings: Settings) -> keys.Fields:
    """The layer pattern: by default every other layer, from the first, has a window."""
    n_layers = settings.required_int("num_hidden_layers")
    types = read_layer_types(settings, n_layers) or [
        FULL if i % 2 else SLIDING for i in range(n_layers)
    ]
    return read_windows(settings, types, settings.optional_int("sliding_window", missing=128))


def _write_layers(spec: ModelSpec) -> Json:
    types, size = write_windows(spec.model)
    return {"layer_types": types, "sliding_window": size or 128}  # which it always reads


def _experts(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of experts: gate and up in one tensor with alternating columns, down in another."""
    moe = spec.model.feedforward
    if not isinstance(moe, MixtureOfExpertsConfig):
        raise InputError(f"this family has no {kind_of(moe)} feed-forward")
    for i in range(spec.model.n_layers):
        for theirs, ours in (
            ("gate_up_proj", ("gate_proj", "up_proj")),
            ("down_proj", ("down_proj",)),
        ):
            for kind, end in (("weight", ""), ("bias", "_bias")):
                names = (
                    f"stack.blocks.{i}.feedforward.experts.{e}.{part}.{kind}"
                    for e in range(moe.n_experts)
                    for part in ours
                )
                name = f"model.layers.{i}.mlp.experts.{theirs}{end}"
                yield StackedExperts(tuple(names), name, len(ours))


GPT_OSS = relative(
    "gpt_oss",
    decoder(
        MODEL,
        keys.VOCABULARY,
        MAX_LEN,
        keys.Size("d_model", "hidden_size"),
        keys.Size("n_layers", "num_hidden_layers"),
        keys.Size("attention.n_heads", "num_attention_heads"),
        heads_of_keys(8),
        head_width(64),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        keys.Value("attention.bias attention.out_bias", "attention_bias", True),
        _RotaryKeys(150000.0),
        norm_eps("rms_norm_eps", 1e-5),
        keys.Computed(_read_layers, _write_layers),
        keys.Size("feedforward.n_experts", "num_local_experts num_experts", 128),
        keys.Size("feedforward.top_k", "num_experts_per_tok experts_per_token", 4),
        keys.Size("feedforward.expert.d_ff", "intermediate_size"),
        keys.Value("feedforward.expert.limit", "swiglu_limit", 7.0),
        keys.Value("feedforward.balance", "router_aux_loss_coef", 0.001),
        keys.Fixed("swiglu_alpha", 1.702),
        keys.Ignored("hidden_act output_router_logits initial_context_length"),
        DecoderHead("GptOss", tied=False),
    ),
    NAMES
    | within(
        "stack.blocks.*",
        "model.layers.*",
        {"attention.core": "self_attn", "feedforward.router": "mlp.router"},
    ),
    others=_experts,
)
"""OpenAI 2025 (2508.10925); published with experts in MXFP4."""
