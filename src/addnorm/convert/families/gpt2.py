"""GPT-2: learned positions, pre-norm, GELU; weights stored as (in, out)."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.maps import (
    QKV,
    Renamed,
    TensorMap,
    Transposed,
    concatenated,
    within,
)
from addnorm.convert.core.tasks import DecoderHead
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

SIZES: tuple[keys.Entry, ...] = (
    keys.VOCABULARY,
    keys.Size("max_len", "n_positions max_position_embeddings"),
    keys.Size("d_model", "n_embd hidden_size"),
    keys.Size("n_layers", "n_layer num_hidden_layers"),
    keys.Size("attention.n_heads", "n_head num_attention_heads"),
    keys.Size("feedforward.d_ff", "n_inner", lambda s: 4 * s.required_int("n_embd", "hidden_size")),
    keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
    keys.Value("attention.dropout", "attn_pdrop", 0.1),
    keys.Value("dropout", "resid_pdrop", 0.1),
    keys.Repeated("dropout", "embd_pdrop"),
    keys.Ignored("summary_type summary_use_proj summary_activation summary_first_dropout"),
    keys.Ignored("summary_proj_to_labels"),
)
"""The keys of sizes, of ε and of dropout, which relatives share."""

TABLE = keys.ConfigTable(
    DecoderConfig(
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=1),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        init="gpt2",
    ),
    (
        *SIZES,
        keys.Choice("feedforward.activation", "activation_function", keys.ACTIVATIONS, "gelu_new"),
        DecoderHead("GPT2", tied=True, ending="LMHeadModel"),
        keys.Fixed("scale_attn_weights", True),
        keys.Fixed("scale_attn_by_inverse_layer_idx", False),
        keys.Fixed("reorder_and_upcast_attn", False, (True,)),
    ),
)


NAMES = {
    "embed.tokens": "transformer.wte",
    "embed.position.table": "transformer.wpe",
    "stack.norm": "transformer.ln_f",
    "head": "lm_head",
    **within(
        "stack.blocks.*",
        "transformer.h.*",
        {
            "attention_residual.norm": "ln_1",
            "attention.out_proj": "attn.c_proj",
            "feedforward_residual.norm": "ln_2",
            "feedforward.up_proj": "mlp.c_fc",
            "feedforward.down_proj": "mlp.c_proj",
        },
    ),
}


def _matrices(spec: ModelSpec) -> Iterator[TensorMap]:
    """The maps of the layers' matrices, which are stored as (in, out)."""
    for i in range(spec.model.n_layers):
        ours, theirs = f"stack.blocks.{i}", f"transformer.h.{i}"
        weight, bias = concatenated(
            f"{ours}.attention", QKV, f"{theirs}.attn.c_attn.", spec.model.d_model
        )
        yield from (Transposed(weight), bias)
        for part in ("attention.out_proj", "feedforward.up_proj", "feedforward.down_proj"):
            name = NAMES[f"stack.blocks.*.{part}"].replace("*", str(i))
            yield Transposed(Renamed(f"{ours}.{part}.weight", f"{name}.weight"))


GPT2 = Family(
    model_type="gpt2",
    config=TABLE,
    names=NAMES,
    others=_matrices,
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""Radford et al. 2019."""
