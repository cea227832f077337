"""CTranslate2 options for the parts of a stack; parts that it lacks are refused."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from addnorm.convert.exporters.decoder_parts import geometric
from addnorm.errors import InputError
from addnorm.nn.attention import EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import AnyBlock, Block, CrossBlock, ParallelBlock, Stack
from addnorm.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from addnorm.nn.masks import Full
from addnorm.nn.norms import NoNorm
from addnorm.nn.positions import ALiBi, NoPosition, Rotary, T5Bias
from addnorm.nn.positions.rotary import LAYOUTS
from addnorm.nn.residuals import PostNorm, PreNorm, SandwichNorm

Options = dict[str, Any]
"""Arguments of CTranslate2's `TransformerEncoderSpec` or `TransformerDecoderSpec`."""

KNOWN_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "sigmoid": "Sigmoid",
}
"""What CTranslate2 calls them."""


def refusal(part: str, accepted: str) -> InputError:
    """The error for a part that CTranslate2 does not have."""
    return InputError(f"CTranslate2 has no {part}: {accepted} can be exported")


def stack_options(stack: Stack) -> Options:
    """What all layers of a stack have in common. Raises `InputError` for what is not there."""
    layers = [_block_options(block) for block in blocks_of(stack)]
    for i, options in enumerate(layers):
        if options != layers[0]:
            raise refusal(f"layer {i} unlike layer 0", "a stack of like layers")
    return layers[0] | {"num_layers": len(layers)}


def blocks_of(stack: Stack) -> Iterator[AnyBlock]:
    """The blocks, by their types."""
    for block in stack.blocks:
        assert isinstance(block, AnyBlock)
        yield block


def _block_options(block: AnyBlock) -> Options:
    attention = block.attention
    if not isinstance(attention, SelfAttention):
        raise refusal(type(attention).__name__, "attention")
    if attention.pattern != Full():
        raise refusal(f"pattern {attention.pattern}", "full attention")
    options = _head_options(attention)
    if isinstance(block, CrossBlock):
        if _head_options(block.cross_attention) != options:
            raise refusal("cross-attention with heads of its own", "like heads in all attention")
        if not isinstance(block.cross_attention.q_norm, NoNorm):
            raise refusal("qk_norm in cross-attention", "one in self-attention alone")
    options["qk_norm"] = not isinstance(attention.q_norm, NoNorm)
    options |= _feedforward_options(block.feedforward)
    return options | _position_options(attention) | _placement_options(block)


def _head_options(attention: MultiHead) -> Options:
    core = attention.core
    score = core.score if isinstance(core, SDPACore | EagerCore) else core
    if not isinstance(score, DotProduct) or score.weight is not None or score.softcap is not None:
        raise refusal("score of this kind", "dot products, scaled or not, without softcap,")
    n_heads, n_kv_heads = (
        proj.out_features // attention.d_head for proj in (attention.q_proj, attention.k_proj)
    )
    return {
        "num_heads": n_heads,
        "num_heads_kv": None if n_kv_heads == n_heads else n_kv_heads,
        "head_dim": attention.d_head,
    }


def _feedforward_options(layer: nn.Module) -> Options:
    from ctranslate2.specs import common_spec

    if not isinstance(layer, FeedForward | GatedFeedForward):
        raise refusal(type(layer).__name__, "'mlp' and 'gated'")
    [name] = [name for name, act in ACTIVATIONS.items() if act is layer.activation]
    if name not in KNOWN_ACTIVATIONS:
        raise refusal(name, ", ".join(KNOWN_ACTIVATIONS))
    activation = common_spec.Activation[KNOWN_ACTIVATIONS[name]]
    return {"ffn_glu": isinstance(layer, GatedFeedForward), "activation": activation}


def _position_options(attention: SelfAttention) -> Options:
    match attention.position:
        case NoPosition():
            return {}
        case ALiBi():
            return {"alibi": True}
        case T5Bias():
            return {"relative_attention_bias": True}
        case Rotary() as rotary:
            return _rotary_options(rotary, attention.d_head)
        case other:
            raise refusal(
                f"{type(other).__name__} positions",
                "sinusoidal, learned, rotary, T5 and, in decoders, ALiBi",
            )


def _rotary_options(rotary: Rotary, d_head: int) -> Options:
    """The base, and the factor by which positions are shorter, that give these frequencies."""
    from ctranslate2.specs import attention_spec

    found = geometric(rotary)
    if rotary.temperature != 1.0 or found is None:
        raise refusal("rotary scaling of this kind", "none, 'linear' and 'ntk'")
    base, factor = found
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


def _placement_options(block: AnyBlock) -> Options:
    if isinstance(block, ParallelBlock):
        shared = not isinstance(block.norm, NoNorm)
        return {"pre_norm": True, "parallel_residual": True, "shared_layer_norm": shared}
    accepted = "'post', 'pre', 'sandwich' and, in decoder-only models, 'parallel'"
    if not isinstance(block, Block | CrossBlock):
        raise refusal("parallel cross-attention", accepted)
    match block.attention_residual:
        case PostNorm():
            return {"pre_norm": False}
        case PreNorm():
            return {"pre_norm": True}
        case SandwichNorm():
            return {"pre_norm": True, "pre_post_layer_norm": True}
        case other:
            raise refusal(f"placement {type(other).__name__}", accepted)
