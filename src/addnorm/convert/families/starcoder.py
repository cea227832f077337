"""StarCoder 2, with rotary positions; StarCoder, which is GPT-2 with one key/value head."""

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import RotaryKeys, one_window
from addnorm.convert.core.family import Family, ModelSpec, attention_of
from addnorm.convert.core.fused import interleaved_qkv
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.convert.families.gpt2 import NAMES as GPT2_NAMES
from addnorm.convert.families.gpt2 import SIZES, TABLE
from addnorm.convert.families.llama import (
    BODY,
    NAMES,
    decoder,
    head_width,
    heads_of_keys,
    norm_eps,
    relative,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig

STARCODER2 = relative(
    "starcoder2",
    decoder(
        DecoderConfig(
            position=RotaryConfig(),
            attention=AttentionConfig(n_heads=1),
            residual=PreNormConfig(),
            embedding=EmbeddingConfig(scale="one"),
            init="gpt2",
        ),
        *BODY,
        RotaryKeys(),
        heads_of_keys(2),
        head_width(None),
        keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu_pytorch_tanh"),
        keys.Value("attention.bias attention.out_bias feedforward.bias", "use_bias", True),
        norm_eps("norm_epsilon", 1e-5),
        one_window(),
        keys.Value("dropout", "residual_dropout", 0.0),
        keys.Repeated("dropout", "embedding_dropout"),
        DecoderHead("Starcoder2", tied=True),
        # Names of what all its models have.
        keys.Ignored("activation_function layer_norm_epsilon mlp_type norm_type"),
        keys.Ignored(
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights"
        ),
    ),
    {
        **NAMES,
        "stack.blocks.*.feedforward.up_proj": "model.layers.*.mlp.c_fc",
        "stack.blocks.*.feedforward.down_proj": "model.layers.*.mlp.c_proj",
    },
)
"""Lozhkov et al. 2024 (2402.19173)."""


def _read_one_key_head(settings: Settings) -> keys.Fields:
    n_heads = settings.required_int("n_head", "num_attention_heads")
    return {"attention.n_kv_heads": 1 if settings.get("multi_query", True) else n_heads}


def _write_one_key_head(spec: ModelSpec) -> Json:
    heads = attention_of(spec.model).heads(spec.model.d_model)
    if heads.n_kv_heads not in (1, heads.n_heads):
        raise InputError(
            f"gpt_bigcode has one head of keys, or as many as of queries: {heads.n_kv_heads} of "
            f"{heads.n_heads}"
        )
    return {"multi_query": heads.n_kv_heads == 1}


GPT_BIGCODE = Family(
    model_type="gpt_bigcode",
    config=keys.ConfigTable(
        TABLE.base,
        (
            *SIZES,
            keys.Choice(
                "feedforward.activation",
                "activation_function",
                keys.ACTIVATIONS,
                "gelu_pytorch_tanh",
            ),
            keys.Computed(_read_one_key_head, _write_one_key_head),
            DecoderHead("GPTBigCode", tied=True),
            keys.Fixed("scale_attn_weights", True),
            keys.Ignored("attention_softmax_in_fp32 scale_attention_softmax_in_fp32"),
            keys.Ignored("num_key_value_heads"),  # which follows from multi_query
            keys.Ignored("inference_runner validate_runner_input pre_allocate_kv_cache"),
            keys.Ignored("max_sequence_length max_batch_size pad_key_length attn_implementation"),
        ),
    ),
    names=GPT2_NAMES,
    others=interleaved_qkv("transformer.h.*.attn.c_attn"),
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""SantaCoder and StarCoder: Li et al. 2023 (2305.06161)."""
