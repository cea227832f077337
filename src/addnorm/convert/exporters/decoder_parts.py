"""Describe the parts of a decoder, and find the llama.cpp architecture that has them all."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.nn.attention import EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Block, ParallelBlock, Stack
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full, Mask, Window
from addnorm.nn.norms import BatchNorm, LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm, ScaleNorm
from addnorm.nn.positions import Learned, NoPosition, Position, Rotary, Sinusoidal
from addnorm.nn.positions.sinusoidal import frequencies
from addnorm.nn.residuals import PostNorm, PreNorm, SandwichNorm

Norm = LayerNorm | RMSNorm | OffsetRMSNorm | ScaleNorm | BatchNorm
PartDescriptions = Mapping[str, str]
"""A short description of each part."""

Architecture = Mapping[str, tuple[str, ...]]
"""The descriptions that an architecture accepts, by part."""

ANY_BIAS = ("none", "qkv", "out", "all")
PLAIN: Architecture = {
    "norm": ("rmsnorm",),
    "eps": ("one for all norms",),
    "score": ("scaled dot",),
    "qk_norm": ("none",),
    "pattern": ("full",),
    "position": ("rotary",),
    "frequencies": ("none", "geometric"),
    "heads": ("of d_model in all", "of another width"),
    "embedding": ("plain",),
    "scale": ("one", "sqrt", "of its own"),
    "head": ("plain",),
    "tied": ("yes", "no"),
}
LLAMA: Architecture = PLAIN | {
    "placement": ("pre",),
    "frequencies": ("none", "geometric", "of its own"),
    "feedforward": ("gated silu",),
    "feedforward bias": ("none", "all"),
    "attention bias": ANY_BIAS,
}
QWEN3: Architecture = LLAMA | {
    "frequencies": PLAIN["frequencies"],
    "feedforward bias": ("none",),
    "attention bias": ("none", "qkv"),
    "qk_norm": ("rmsnorm",),
}
GEMMA: Architecture = QWEN3 | {
    "qk_norm": ("none",),
    "feedforward": ("gated gelu_tanh",),
    "position": ("rotary", "partial rotary"),
    "scale": ("sqrt",),
    "tied": ("yes",),
}
GPT2: Architecture = PLAIN | {
    "placement": ("pre",),
    "norm": ("layernorm",),
    "position": ("learned", "sinusoidal"),
    "heads": ("of d_model in all",),
    "feedforward": ("gelu_tanh",),
    "feedforward bias": ("all",),
    "attention bias": ("all",),
}
ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": QWEN3
    | {"attention bias": ("qkv",), "qk_norm": ("none",), "heads": ("of d_model in all",)},
    "llama": LLAMA,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA
    | {
        "placement": ("sandwich",),
        "score": ("scaled dot with softcap",),
        "pattern": ("full", "a window in every second layer"),
        "head": ("with softcap",),
    },
    "gpt2": GPT2,
    "gptneox": GPT2
    | {
        "placement": ("pre", "parallel"),
        "position": ("rotary", "partial rotary"),
    },
    "mpt": GPT2
    | {
        "norm": ("layernorm", "layernorm without bias"),
        "position": ("alibi", "learned", "sinusoidal", "none"),
        "feedforward bias": ("none", "all"),
        "attention bias": ANY_BIAS,
    },
}
"""The architectures that are written, the more particular before those that have it all."""


def architecture_of(model: DecoderModel) -> str:
    """The first architecture that has every part of the model.

    Raises `InputError` that names the nearest one, and what it lacks.
    """
    facts = describe_parts(model)
    lacks = {name: list(_lacking(facts, parts)) for name, parts in ARCHITECTURES.items()}
    name = min(lacks, key=lambda name: len(lacks[name]))
    if lacks[name]:
        raise InputError(
            f"no architecture of llama.cpp has the parts of this model. The nearest is {name!r}: "
            + "; ".join(lacks[name])
        )
    return name


def _lacking(facts: PartDescriptions, parts: Architecture) -> Iterator[str]:
    for part, fact in facts.items():
        if fact not in parts[part]:
            yield f"its {part} is {' or '.join(map(repr, parts[part]))}, not {fact!r}"


def describe_parts(model: DecoderModel) -> dict[str, str]:
    """A short description of each part of the model."""
    layers = [_block_facts(block, model.embed) for block in blocks_of(model.stack)]
    for i, facts in enumerate(layers):
        if facts != layers[0]:
            part = next(part for part in facts if facts[part] != layers[0][part])
            raise InputError(
                f"GGUF has one kind of layer for all: layer {i} has {part} {facts[part]!r}, and "
                f"layer 0 has {layers[0][part]!r}"
            )
    mixers = [attention_of(block) for block in blocks_of(model.stack)]
    return layers[0] | {
        "pattern": _pattern([mixer.pattern for mixer in mixers]),
        "eps": "one for all norms" if len(eps_of(model)) == 1 else "several",
        "embedding": _embedding(model.embed),
        "scale": _scale(model.embed),
        "head": _head(model.head),
        "tied": "yes" if model.head.weight is model.embed.tokens.weight else "no",
    }


def blocks_of(stack: Stack) -> Iterator[Block | ParallelBlock]:
    """The blocks, by their types."""
    for block in stack.blocks:
        assert isinstance(block, Block | ParallelBlock)
        yield block


def attention_of(block: Block | ParallelBlock) -> SelfAttention:
    """The attention of a block. Raises `InputError` where another mixer stands there."""
    if not isinstance(block.attention, SelfAttention):
        raise InputError(f"llama.cpp has attention in every layer, not {block.attention}")
    return block.attention


def _block_facts(block: Block | ParallelBlock, embed: Embedding) -> dict[str, str]:
    attention = attention_of(block)
    d_model, inner = attention.out_proj.out_features, attention.out_proj.in_features
    return {
        "placement": _placement(block),
        "norm": _kind(norms_of(block).values()),
        "score": _score(attention),
        "qk_norm": _kind([attention.q_norm, attention.k_norm]),
        "attention bias": _attention_bias(attention),
        "heads": "of d_model in all" if inner == d_model else "of another width",
        "position": _position(attention, embed),
        "frequencies": _frequencies(attention.position),
        "feedforward": _feedforward(block.feedforward),
        "feedforward bias": _feedforward_bias(block.feedforward),
    }


def _placement(block: Block | ParallelBlock) -> str:
    if isinstance(block, ParallelBlock):
        return "parallel"
    match block.attention_residual:
        case PreNorm():
            return "pre"
        case PostNorm():
            return "post"
        case SandwichNorm():
            return "sandwich"
        case other:
            return type(other).__name__.lower()


def norms_of(block: Block | ParallelBlock) -> dict[str, nn.Module]:
    """The norms of a block by what llama.cpp calls them."""
    first, second = block.attention_residual, block.feedforward_residual
    if isinstance(first, SandwichNorm) and isinstance(second, SandwichNorm):
        return {
            "attn_norm": first.norm_in,
            "post_attention_norm": first.norm_out,
            "ffn_norm": second.norm_in,
            "post_ffw_norm": second.norm_out,
        }
    assert not isinstance(first, SandwichNorm)
    assert not isinstance(second, SandwichNorm)
    if isinstance(block, ParallelBlock) and not isinstance(block.norm, NoNorm):
        return {"attn_norm": block.norm, "ffn_norm": block.norm}
    return {"attn_norm": first.norm, "ffn_norm": second.norm}


def _kind(norms: Iterable[nn.Module]) -> str:
    kinds = {_norm(norm) for norm in norms}
    return kinds.pop() if len(kinds) == 1 else "a mixture"


def _norm(norm: nn.Module) -> str:
    match norm:
        case LayerNorm(bias=None):
            return "layernorm without bias"
        case RMSNorm() | OffsetRMSNorm():
            return "rmsnorm"
        case NoNorm():
            return "none"
        case _:
            return type(norm).__name__.lower()


def _score(attention: SelfAttention) -> str:
    core = attention.core
    score = core.score if isinstance(core, SDPACore | EagerCore) else core
    if not isinstance(score, DotProduct) or score.weight is not None:
        return "of another kind"
    if score.scale != attention.d_head**-0.5:
        return "scaled by another factor"
    return "scaled dot" if score.softcap is None else "scaled dot with softcap"


def _attention_bias(attention: SelfAttention) -> str:
    qkv, out = (_has_bias(layer) for layer in (attention.q_proj, attention.out_proj))
    return {(False, False): "none", (True, False): "qkv", (False, True): "out"}.get(
        (qkv, out), "all"
    )


def _has_bias(layer: nn.Linear) -> bool:
    return "bias" in dict(layer.named_parameters())


def _feedforward(layer: nn.Module) -> str:
    if not isinstance(layer, FeedForward | GatedFeedForward):
        return type(layer).__name__
    [name] = [name for name, act in ACTIVATIONS.items() if act is layer.activation]
    return f"gated {name}" if isinstance(layer, GatedFeedForward) else name


def _feedforward_bias(layer: nn.Module) -> str:
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    return "all" if all(map(_has_bias, linears)) else "none"


def _position(attention: SelfAttention, embed: Embedding) -> str:
    """The scheme, wherever it acts."""
    added, turned = embed.position, attention.position
    if not isinstance(turned, NoPosition):
        whole = isinstance(turned, Rotary) and 2 * len(turned.frequencies) == attention.d_head
        name = type(turned).__name__.lower()
        both = isinstance(added, Learned | Sinusoidal)
        return "of two kinds" if both else name if whole or name != "rotary" else f"partial {name}"
    return type(added).__name__.lower() if isinstance(added, Learned | Sinusoidal) else "none"


def _frequencies(position: Position) -> str:
    if not isinstance(position, Rotary):
        return "none"
    if position.temperature == 1.0 and geometric(position) is not None:
        return "geometric"
    return "of its own"


def geometric(rotary: Rotary) -> tuple[float, float] | None:
    """The base and the factor of `ω_i = base^(-2i/width) / factor`, if they are such."""
    actual = rotary.frequencies
    width, factor = 2 * len(actual), 1 / float(actual[0])
    base = float(actual[0] / actual[1]) ** (width / 2) if len(actual) > 1 else 10000.0
    found = torch.allclose(frequencies(width, base) / factor, actual, rtol=1e-9, atol=0.0)
    return (base, factor) if found else None


def _pattern(patterns: list[Mask]) -> str:
    if set(patterns) == {Full()}:
        return "full"
    even, odd = set(patterns[::2]), set(patterns[1::2])
    if len(even) == 1 and isinstance(patterns[0], Window) and odd == {Full()}:
        return "a window in every second layer"
    return "of another kind"


def eps_of(model: DecoderModel) -> set[float]:
    """The ε of all norms, those of early exits left out."""
    return {module.eps for module in model.stack.modules() if isinstance(module, Norm)}


def _embedding(embed: Embedding) -> str:
    if embed.types is not None:
        return "with sentence types"
    return "plain" if isinstance(embed.norm, NoNorm) else "with a norm"


def _scale(embed: Embedding) -> str:
    if embed.scale == 1.0:
        return "one"
    return "sqrt" if embed.scale == embed.tokens.embedding_dim**0.5 else "of its own"


def _head(head: TokenHead) -> str:
    extras = {
        "a transform": head.transform is not None,
        "a bias": head.bias is not None,
        "a scale": head.scale != 1.0,
        "softcap": head.softcap is not None,
    }
    found = [name for name, present in extras.items() if present]
    return f"with {' and '.join(found)}" if found else "plain"
