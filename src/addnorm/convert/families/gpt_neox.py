"""GPT-NeoX and Pythia: parallel attention and feed-forward, partial rotary positions."""

from addnorm.convert.core import keys
from addnorm.convert.core.attention_keys import (
    MAX_LEN,
    THETA,
    rope_keys,
    rope_table,
    rotary_of,
    write_rotary,
)
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.fused import interleaved_qkv
from addnorm.convert.core.maps import within
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.core.tasks import DecoderHead
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig


def _read_rotary(settings: Settings) -> keys.Fields:
    """Partial rotary positions, from `rope_parameters` or older keys."""
    d_model = settings.required_int("hidden_size")
    n_heads = settings.required_int("num_attention_heads")
    if d_model % n_heads:
        raise settings.refuse("num_attention_heads", f"hidden_size = {d_model} does not divide")
    theta, part = settings.get("rotary_emb_base", THETA), settings.get("rotary_pct", 0.25)
    settings.expect("rope_theta", None, theta)
    settings.expect("partial_rotary_factor", None, part)
    table = rope_table(settings)
    fraction = table.get("partial_rotary_factor", part)
    turned = d_model // n_heads * fraction
    if abs(int(turned) - turned) > 1e-6:
        raise InputError(
            f"{settings.where}: rotary_pct = {fraction:g} of a head of {d_model // n_heads} "
            f"features turns {turned:g} of them, which is not an integer"
        )
    return {"position": rotary_of(table, settings, theta, fraction)}


def _write_rotary(spec: ModelSpec) -> Json:
    position = spec.model.position
    rope = write_rotary(position)
    fraction = position.fraction if isinstance(position, RotaryConfig) else 1.0
    return {
        "rope_parameters": rope | {"partial_rotary_factor": fraction},
        "rope_scaling": rope_keys(rope)["rope_scaling"],
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": fraction,
    }


TABLE = keys.ConfigTable(
    DecoderConfig(
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=1),
        embedding=EmbeddingConfig(scale="one"),
        init="gpt2",
    ),
    (
        keys.VOCABULARY,
        MAX_LEN,
        keys.Computed(_read_rotary, _write_rotary),
        *keys.SIZES,
        keys.Value("attention.bias", "attention_bias", True),
        keys.Value("attention.dropout", "attention_dropout", 0.0),
        keys.Choice("feedforward.activation", "hidden_act", keys.ACTIVATIONS, "gelu"),
        keys.Value("norm.eps", "layer_norm_eps", 1e-5),
        keys.Choice(
            "residual",
            "use_parallel_residual",
            {True: ParallelConfig(norms="each"), False: PreNormConfig()},
            True,
        ),
        keys.Value("dropout", "hidden_dropout", 0.0),
        DecoderHead("GPTNeoX", tied=False),
        keys.Ignored("classifier_dropout"),
    ),
)


GPT_NEOX = Family(
    model_type="gpt_neox",
    config=TABLE,
    names={
        "embed.tokens": "gpt_neox.embed_in",
        "stack.norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        **within(
            "stack.blocks.*",
            "gpt_neox.layers.*",
            {
                "attention.out_proj": "attention.dense",
                "attention_residual.norm": "input_layernorm",
                "feedforward_residual.norm": "post_attention_layernorm",
                "feedforward.up_proj": "mlp.dense_h_to_4h",
                "feedforward.down_proj": "mlp.dense_4h_to_h",
            },
        ),
    },
    others=interleaved_qkv("gpt_neox.layers.*.attention.query_key_value"),
    prefix="gpt_neox.",
    renames=((r"^lm_head\.", "embed_out."),),
    ignored=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    ties=(("embed_out.weight", "gpt_neox.embed_in.weight"),),
)
"""Black et al. 2022; Biderman et al. 2023."""
