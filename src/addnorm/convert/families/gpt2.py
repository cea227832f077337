"""GPT-2: learned positions, pre-norm, GELU; weights stored as (in, out)."""

from collections.abc import Iterator

from addnorm.convert.core import keys
from addnorm.convert.core.family import Family, ModelSpec, layers
from addnorm.convert.core.maps import Concatenated, Renamed, TensorMap, Transposed, weight_and_bias
from addnorm.convert.core.tasks import DecoderHead, head_weights
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig

TABLE = keys.ConfigTable(
    DecoderConfig(
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=1),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
        init="gpt2",
    ),
    (
        keys.VOCABULARY,
        keys.Size("max_len", "n_positions max_position_embeddings"),
        keys.Size("d_model", "n_embd hidden_size"),
        keys.Size("n_layers", "n_layer num_hidden_layers"),
        keys.Size("attention.n_heads", "n_head num_attention_heads"),
        keys.Size(
            "feedforward.d_ff", "n_inner", lambda s: 4 * s.required_int("n_embd", "hidden_size")
        ),
        keys.Choice("feedforward.activation", "activation_function", keys.ACTIVATIONS, "gelu_new"),
        keys.Value("norm.eps", "layer_norm_epsilon", 1e-5),
        keys.Value("attention.dropout", "attn_pdrop", 0.1),
        keys.Value("dropout", "resid_pdrop", 0.1),
        keys.Repeated("dropout", "embd_pdrop"),
        DecoderHead("GPT2", tied=True, ending="LMHeadModel"),
        keys.Fixed("scale_attn_weights", True),
        keys.Fixed("scale_attn_by_inverse_layer_idx", False),
        keys.Fixed("reorder_and_upcast_attn", False, (True,)),
        keys.Ignored("summary_type summary_use_proj summary_activation summary_first_dropout"),
        keys.Ignored("summary_proj_to_labels"),
    ),
)


def _maps(spec: ModelSpec) -> Iterator[TensorMap]:
    model = spec.model
    yield Renamed("embed.tokens.weight", "transformer.wte.weight")
    yield Renamed("embed.position.table.weight", "transformer.wpe.weight")
    yield from layers(model.n_layers, lambda i: _layer(i, model.d_model))
    yield from weight_and_bias("stack.norm", "transformer.ln_f")
    yield from head_weights(model, "lm_head.weight")


def _layer(i: int, d_model: int) -> Iterator[TensorMap]:
    ours, theirs = f"stack.blocks.{i}", f"transformer.h.{i}"
    yield from weight_and_bias(f"{ours}.attention_residual.norm", f"{theirs}.ln_1")
    for kind in ("weight", "bias"):
        names = tuple(f"{ours}.attention.{part}_proj.{kind}" for part in "qkv")
        fused = Concatenated(names, f"{theirs}.attn.c_attn.{kind}", (d_model,) * 3)
        yield Transposed(fused) if kind == "weight" else fused
    yield from _turned(f"{ours}.attention.out_proj", f"{theirs}.attn.c_proj")
    yield from weight_and_bias(f"{ours}.feedforward_residual.norm", f"{theirs}.ln_2")
    yield from _turned(f"{ours}.feedforward.up_proj", f"{theirs}.mlp.c_fc")
    yield from _turned(f"{ours}.feedforward.down_proj", f"{theirs}.mlp.c_proj")


def _turned(ours: str, theirs: str) -> Iterator[TensorMap]:
    yield Transposed(Renamed(f"{ours}.weight", f"{theirs}.weight"))
    yield Renamed(f"{ours}.bias", f"{theirs}.bias")


GPT2 = Family(
    model_types=("gpt2",),
    read=TABLE.read,
    write=TABLE.write,
    maps=_maps,
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    ties=(("lm_head.weight", "transformer.wte.weight"),),
)
"""Radford et al. 2019."""
