"""Phi 1 to 4: parallel sublayers with biases; from Phi 3 on LLaMA's layers with fused matrices."""

from dataclasses import dataclass

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import PARTIAL, RotaryKeys, one_window, rope_table
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.fused import concatenated_gate_up, concatenated_qkv, fused
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.llama import (
    BODY,
    LLAMA_MODEL,
    NAMES,
    decoder,
    heads_of_keys,
    llama_keys,
    norm_eps,
    relative,
)
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import ParallelConfig

ORIGINAL = "original_max_position_embeddings"
DROPOUT = (keys.Value("dropout", "resid_pdrop", 0.0), keys.Repeated("dropout", "embd_pdrop"))

PHI = relative(
    "phi",
    decoder(
        DecoderConfig(
            position=RotaryConfig(),
            attention=AttentionConfig(n_heads=1),
            residual=ParallelConfig(),
            embedding=EmbeddingConfig(scale="one"),
            init="gpt2",
        ),
        *BODY,
        RotaryKeys(fraction=0.5),
        heads_of_keys(),
        keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu_new"),
        keys.Choice(
            "attention.qk_norm", "qk_layernorm", {False: None, True: LayerNormConfig()}, False
        ),
        norm_eps("layer_norm_eps", 1e-5),
        *DROPOUT,
        DecoderHead("Phi", tied=False, bias=True),
    ),
    {
        **NAMES,
        "stack.norm": "model.final_layernorm",
        "stack.blocks.*.attention.out_proj": "model.layers.*.self_attn.dense",
        "stack.blocks.*.attention.q_norm": "model.layers.*.self_attn.q_layernorm",
        "stack.blocks.*.attention.k_norm": "model.layers.*.self_attn.k_layernorm",
        "stack.blocks.*.feedforward.up_proj": "model.layers.*.mlp.fc1",
        "stack.blocks.*.feedforward.down_proj": "model.layers.*.mlp.fc2",
    },
)
"""Li et al. 2023 (2309.05463)."""


@dataclass(frozen=True)
class LongRotaryKeys(RotaryKeys):
    """Rotary positions whose original length is outside of their table.

    Their scaling was called `su` and `yarn` before it was `longrope`.
    """

    def read(self, settings: Settings) -> keys.Fields:
        original = settings.get(ORIGINAL, 4096)
        table = dict(rope_table(settings).tree)
        name = "rope_type" if table.get("rope_type") else "type"
        if table.get(name, "default") != "default":
            table |= {name: "longrope", ORIGINAL: original}
        inner = Settings(settings.tree | {"rope_scaling": table}, settings.where)
        settings.ignore("rope_scaling", "rope_parameters", "rope_theta", PARTIAL)
        return super().read(inner)

    def write(self, spec: ModelSpec) -> Json:
        tree = super().write(spec)
        original = tree["rope_parameters"].get(ORIGINAL)
        return tree if original is None else tree | {ORIGINAL: original}


PHI3 = relative(
    "phi3",
    decoder(
        LLAMA_MODEL,
        *llama_keys(
            "Phi3", position=LongRotaryKeys(fraction=1.0), norm=norm_eps("rms_norm_eps", 1e-5)
        ),
        one_window(),
        *DROPOUT,
    ),
    others=fused(
        concatenated_qkv("model.layers.*.self_attn.qkv_proj"),
        concatenated_gate_up("model.layers.*.mlp.gate_up_proj"),
    ),
)
"""Abdin et al. 2024 (2404.14219)."""
