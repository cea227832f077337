"""CTranslate2 options for the parts of a stack; unsupported parts are rejected."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from addnorm.convert.exporters.claims import (
    claim_alibi,
    claim_dot_product,
    claim_feedforward,
    claim_rotary,
    geometric,
)
from addnorm.errors import InputError
from addnorm.models.ledger import TYPE, Ledger
from addnorm.nn.attention import CrossAttention, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.blocks import (
    AnyBlock,
    Block,
    CanonBlock,
    ConvolvedBlock,
    CrossBlock,
    EmbeddedBlock,
    ParallelBlock,
    ParallelCrossBlock,
    Stack,
)
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.masks import Full
from addnorm.nn.norms import NoNorm
from addnorm.nn.positions import ALiBi, NoPosition, Rotary, T5Bias
from addnorm.nn.positions.rotary import LAYOUTS
from addnorm.nn.residuals import Branch, PostNorm, PreNorm, SandwichNorm

Options = dict[str, Any]
"""Arguments of CTranslate2's `TransformerEncoderSpec` or `TransformerDecoderSpec`."""

ACTIVATION_NAMES = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
"""CTranslate2's names of activation functions."""


PLACEMENTS: dict[type[PostNorm | PreNorm | SandwichNorm | Branch], Options] = {
    PostNorm: {"pre_norm": False},
    PreNorm: {"pre_norm": True},
    SandwichNorm: {"pre_norm": True, "pre_post_layer_norm": True},
    Branch: {"pre_norm": True, "parallel_residual": True},
}
"""The options for each supported placement."""


def refusal(part: str, accepted: str) -> InputError:
    """The error for an unsupported part."""
    return InputError(f"CTranslate2 has no {part}: {accepted} can be exported")


def stack_options(stack: Stack, ledger: Ledger) -> Options:
    """The options shared by all layers of a stack. Raises `InputError` if unsupported."""
    ledger.stack(stack)
    blocks = list(blocks_of(stack, ledger))
    layers = [_block_options(block, ledger) for block in blocks]
    for i, options in enumerate(layers):
        if options != layers[0]:
            raise refusal(f"layer {i} unlike layer 0", "a stack of equal layers")
    attentions = [block.attention for block in blocks if isinstance(block.attention, SelfAttention)]
    if isinstance(attentions[0].position, Rotary):
        ledger.same([attention.position for attention in attentions], "frequencies")
    ledger.same([block.feedforward.get_submodule("up_proj") for block in blocks], "out_features")
    return layers[0] | {"num_layers": len(layers)}


def blocks_of(stack: Stack, ledger: Ledger) -> Iterator[AnyBlock]:
    """Yield the blocks, and claim their types."""
    for block in stack.blocks:
        yield ledger.module(block, Block, CrossBlock, ParallelBlock, ParallelCrossBlock)


def _block_options(block: AnyBlock, ledger: Ledger) -> Options:
    attention = block.attention
    if not isinstance(attention, SelfAttention):
        raise ledger.refusal(attention, TYPE, "attention")
    ledger.expect(attention, "pattern", Full())
    options = _head_options(attention, ledger)
    if isinstance(block, CrossBlock):
        cross = ledger.module(block.cross_attention, CrossAttention)
        if _head_options(cross, ledger) != options:
            raise refusal("cross-attention with other heads", "the same heads in all attention")
        if not isinstance(cross.q_norm, NoNorm):
            raise refusal("qk_norm in cross-attention", "one in self-attention alone")
    options["qk_norm"] = not isinstance(attention.q_norm, NoNorm)
    options |= _feedforward_options(block.feedforward, ledger)
    return options | _position_options(attention, ledger) | _placement_options(block, ledger)


def _head_options(attention: MultiHead, ledger: Ledger) -> Options:
    ledger.module(attention, SelfAttention, CrossAttention)
    accepted = "dot products, scaled or not, without softcap,"
    score = claim_dot_product(attention, ledger, accepted)
    if score.softcap is not None:
        raise ledger.refusal(score, "softcap", accepted)
    if isinstance(attention.q_norm, NoNorm) != isinstance(attention.k_norm, NoNorm):
        raise refusal("norm of queries or keys alone", "one of both")
    n_heads, n_kv_heads, n_values = (
        proj.out_features // ledger.take(attention, "d_head")
        for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if n_values != n_kv_heads:
        raise refusal(f"{n_values} values for {n_kv_heads} keys", "as many values as keys")
    return {
        "num_heads": n_heads,
        "num_heads_kv": None if n_kv_heads == n_heads else n_kv_heads,
        "head_dim": attention.d_head,
    }


def _feedforward_options(layer: nn.Module, ledger: Ledger) -> Options:
    from ctranslate2.specs import common_spec

    if not isinstance(layer, FeedForward | GatedFeedForward):
        raise ledger.refusal(layer, TYPE, "'mlp' and 'gated'")
    name = claim_feedforward(layer, ledger)
    if name not in ACTIVATION_NAMES:
        raise ledger.refusal(layer, "activation", ", ".join(ACTIVATION_NAMES))
    activation = common_spec.Activation[ACTIVATION_NAMES[name]]
    return {"ffn_glu": isinstance(layer, GatedFeedForward), "activation": activation}


def _position_options(attention: SelfAttention, ledger: Ledger) -> Options:
    match attention.position:
        case NoPosition() as none:
            ledger.module(none, NoPosition)
            return {}
        case ALiBi():
            claim_alibi(attention, ledger)
            return {"alibi": True}
        case T5Bias() as bias:
            ledger.module(bias, T5Bias)
            return {"relative_attention_bias": True}
        case Rotary() as rotary:
            claim_rotary(rotary, ledger)
            return _rotary_options(rotary, attention.d_head)
        case other:
            accepted = "sinusoidal, learned, rotary, T5 and, in decoders, ALiBi positions"
            raise ledger.refusal(other, TYPE, accepted)


def _rotary_options(rotary: Rotary, d_head: int) -> Options:
    """The rotary base and linear scaling factor that produce these frequencies."""
    from ctranslate2.specs import attention_spec

    base_and_factor = geometric(rotary)
    if rotary.temperature != 1.0 or base_and_factor is None:
        raise refusal("rotary scaling of this kind", "none, 'linear' and 'ntk'")
    base, factor = base_and_factor
    width = 2 * len(rotary.frequencies)
    options: Options = {
        "rotary_dim": 0 if width == d_head else width,
        "rotary_interleave": rotary.turn is LAYOUTS["interleaved"],
        "rotary_base": base,
    }
    if factor != 1.0:
        linear = attention_spec.RotaryScalingType.Linear
        options |= {"rotary_scaling_type": linear, "rotary_scaling_factor": factor}
    return options


def _placement_options(block: AnyBlock, ledger: Ledger) -> Options:
    accepted = "'post', 'pre', 'sandwich' and, in decoder-only models, 'parallel'"
    if isinstance(block, ParallelCrossBlock):
        raise refusal("parallel cross-attention", accepted)
    if isinstance(block, CanonBlock):
        raise refusal("Canon layers", accepted)
    if isinstance(block, ConvolvedBlock):
        raise refusal("convolution next to the first layer", accepted)
    if isinstance(block, EmbeddedBlock):
        raise refusal("vectors of tokens for every layer", "embeddings of tokens")
    residuals = list(residuals_of(block).values())
    kinds = {type(residual) for residual in residuals}
    matches = [options for kind, options in PLACEMENTS.items() if kinds == {kind}]
    parallel = isinstance(block, ParallelBlock)
    if not matches or (kinds == {Branch}) != parallel:
        raise refusal(f"placement {' and '.join(kind.__name__ for kind in kinds)}", accepted)
    for residual in residuals:
        ledger.dropout(ledger.module(residual, *PLACEMENTS).dropout)
    shared = {"shared_layer_norm": not isinstance(block.norm, NoNorm)} if parallel else {}
    return matches[0] | shared


def residuals_of(block: Block | CrossBlock | ParallelBlock) -> dict[str, nn.Module]:
    """The residual modules, by CTranslate2's names for the sublayers."""
    residuals = {"self_attention": block.attention_residual, "ffn": block.feedforward_residual}
    return residuals | (
        {"attention": block.cross_attention_residual} if isinstance(block, CrossBlock) else {}
    )
