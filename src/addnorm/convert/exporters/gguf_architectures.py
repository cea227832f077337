"""The architectures of llama.cpp, and the choice of one that has all parts of a decoder.

Every part of a model has a short description, whose items are claimed in the ledger; an unknown
part is described by its type and stays unclaimed.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from addnorm.convert.exporters.claims import (
    claim_added,
    claim_alibi,
    claim_dot_product,
    claim_feedforward,
    claim_rotary,
    geometric,
    leave_unused_position,
)
from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import SelfAttention
from addnorm.nn.blocks import Block, ParallelBlock, Stack
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full, Window
from addnorm.nn.norms import BatchNorm, LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm, ScaleNorm
from addnorm.nn.positions import ALiBi, Learned, NoPosition, Position, Rotary, Sinusoidal
from addnorm.nn.residuals import Branch, PostNorm, PreNorm, SandwichNorm

Norm = LayerNorm | RMSNorm | OffsetRMSNorm | ScaleNorm | BatchNorm

Architecture = Mapping[str, tuple[str, ...]]
"""The part descriptions that an architecture accepts."""

ANY_BIAS = ("none", "qkv", "out", "all")
PLAIN: Architecture = {
    "norm": ("rmsnorm",),
    "score": ("scaled dot",),
    "qk_norm": ("none",),
    "pattern": ("full",),
    "position": ("rotary",),
    "frequencies": ("none", "geometric"),
    "heads": ("of d_model in all", "of another width"),
    "embedding": ("plain",),
    "scale": ("one", "sqrt", "other"),
    "head": ("plain",),
    "tied": ("yes", "no"),
}
LLAMA: Architecture = PLAIN | {
    "placement": ("pre",),
    "frequencies": ("none", "geometric", "other"),
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
"""The supported architectures, more specific ones first."""


def architecture_of(model: DecoderModel, ledger: Ledger) -> str:
    """The first architecture that has every part of the model.

    Raises `InputError` naming the nearest one and the parts it lacks.
    """
    facts = describe_parts(model, ledger)
    lacks = {name: list(_lacking(facts, parts)) for name, parts in ARCHITECTURES.items()}
    name = min(lacks, key=lambda name: len(lacks[name]))
    if lacks[name]:
        raise InputError(
            f"no architecture of llama.cpp has the parts of this model. The nearest is {name!r}: "
            + "; ".join(lacks[name])
        )
    if norm_kind(model.stack.norm, ledger) != facts["norm"]:
        raise ledger.refusal(model.stack.norm, "", f"a final {facts['norm']}")
    return name


def _lacking(facts: Mapping[str, str], parts: Architecture) -> Iterator[str]:
    for part, fact in facts.items():
        if fact not in parts[part]:
            yield f"its {part} is {' or '.join(map(repr, parts[part]))}, not {fact!r}"


# Descriptions of the parts.


def describe_parts(model: DecoderModel, ledger: Ledger) -> dict[str, str]:
    """Describe each part of the model."""
    ledger.module(model, DecoderModel)
    ledger.stack(model.stack)
    ledger.leave_all(model.exits, because="a forward pass ends without the logits of early exits")
    ledger.leave_all(model.ahead, because="a forward pass ends without tokens further ahead")
    embed, head = ledger.module(model.embed, Embedding), ledger.module(model.head, TokenHead)
    blocks = list(blocks_of(model.stack, ledger))
    layers = [_block_facts(block, embed, ledger) for block in blocks]
    for i, facts in enumerate(layers):
        if facts != layers[0]:
            part = next(part for part in facts if facts[part] != layers[0][part])
            raise InputError(
                f"GGUF has one kind of layer for all: layer {i} has {part} {facts[part]!r}, and "
                f"layer 0 has {layers[0][part]!r}"
            )
    leave_unused_position(embed.position, model.stack, ledger)
    return layers[0] | {
        "pattern": _pattern([attention_of(block) for block in blocks], ledger),
        "embedding": _embedding(embed, ledger),
        "scale": _scale(embed, ledger),
        "head": _head(head, ledger),
        "tied": "yes" if head.weight is embed.tokens.weight else "no",
    }


def blocks_of(stack: Stack, ledger: Ledger) -> Iterator[Block | ParallelBlock]:
    """Yield the blocks; claim their types in the ledger."""
    for block in stack.blocks:
        yield ledger.module(block, Block, ParallelBlock)


def attention_of(block: Block | ParallelBlock) -> SelfAttention:
    """The attention of a block. Raises `InputError` for another token mixer."""
    if not isinstance(block.attention, SelfAttention):
        kind = type(block.attention).__name__
        raise InputError(f"llama.cpp has attention in every layer, not {kind}")
    return block.attention


def _block_facts(block: Block | ParallelBlock, embed: Embedding, ledger: Ledger) -> dict[str, str]:
    attention = ledger.module(block.attention, SelfAttention)
    d_model, inner = attention.out_proj.out_features, attention.out_proj.in_features
    projections = (getattr(attention, f"{part}_proj") for part in ("q", "k", "v", "out"))
    return {
        "placement": _placement(block, ledger),
        "norm": _kind(norms_of(block).values(), ledger),
        "score": _score(attention, ledger),
        "qk_norm": _kind([attention.q_norm, attention.k_norm], ledger),
        "attention bias": BIASES.get(tuple(map(_has_bias, projections)), "of some"),
        "heads": "of d_model in all" if inner == d_model else "of another width",
        "position": _position(attention, embed, ledger),
        "frequencies": _frequencies(attention.position),
        "feedforward": _feedforward(block.feedforward, ledger),
        "feedforward bias": _feedforward_bias(block.feedforward),
    }


BIASES: Mapping[tuple[bool, ...], str] = {
    (False, False, False, False): "none",
    (True, True, True, False): "qkv",
    (False, False, False, True): "out",
    (True, True, True, True): "all",
}
"""Descriptions of the biases of queries, keys, values and output."""


def _has_bias(layer: nn.Module) -> bool:
    return "bias" in dict(layer.named_parameters())


def _placement(block: Block | ParallelBlock, ledger: Ledger) -> str:
    residuals = (block.attention_residual, block.feedforward_residual)
    kinds = {type(residual) for residual in residuals}
    names = {PreNorm: "pre", PostNorm: "post", SandwichNorm: "sandwich", Branch: "parallel"}
    kind = kinds.pop()
    if kinds or kind not in names or (kind is Branch) != isinstance(block, ParallelBlock):
        return "a mixture" if kinds else kind.__name__.lower()
    norms: list[nn.Module] = [block.norm] if isinstance(block, ParallelBlock) else []
    for residual in residuals:
        ledger.dropout(ledger.module(residual, *names).dropout)
        norms += _norm_within(residual)
    for norm in norms:
        norm_kind(norm, ledger)
    return names[kind]


def norms_of(block: Block | ParallelBlock) -> dict[str, nn.Module]:
    """The norms of a block, by llama.cpp's names."""
    first, second = block.attention_residual, block.feedforward_residual
    if isinstance(first, SandwichNorm) and isinstance(second, SandwichNorm):
        return {
            "attn_norm": first.norm_in,
            "post_attention_norm": first.norm_out,
            "ffn_norm": second.norm_in,
            "post_ffw_norm": second.norm_out,
        }
    if isinstance(block, ParallelBlock) and not isinstance(block.norm, NoNorm):
        return {"attn_norm": block.norm, "ffn_norm": block.norm}
    named = {"attn_norm": first, "ffn_norm": second}
    return {name: norm for name, residual in named.items() for norm in _norm_within(residual)}


def _norm_within(residual: nn.Module) -> Iterator[nn.Module]:
    """Yield the norm of a residual module, if it has one."""
    yield from (module for name, module in residual.named_children() if name == "norm")


def _kind(norms: Iterable[nn.Module], ledger: Ledger) -> str:
    kinds = {norm_kind(norm, ledger) for norm in norms}
    return kinds.pop() if len(kinds) == 1 else "a mixture"


def norm_kind(norm: nn.Module, ledger: Ledger) -> str:
    """A short name for the kind of a norm."""
    match norm:
        case LayerNorm():
            ledger.module(norm, LayerNorm)
            name = "layernorm without bias" if norm.bias is None else "layernorm"
            return name if norm.weight is not None else f"{name} without gain"
        case RMSNorm() | OffsetRMSNorm():
            ledger.module(norm, RMSNorm, OffsetRMSNorm)
            return "rmsnorm" if norm.weight is not None else "rmsnorm without gain"
        case NoNorm():
            ledger.module(norm, NoNorm)
            return "none"
        case _:
            return type(norm).__name__.lower()


def _score(attention: SelfAttention, ledger: Ledger) -> str:
    score = claim_dot_product(attention, ledger, "scaled dot products")
    ledger.expect(score, "scale", ledger.take(attention, "d_head") ** -0.5)
    return "scaled dot" if score.softcap is None else "scaled dot with softcap"


def _feedforward(layer: nn.Module, ledger: Ledger) -> str:
    if not isinstance(layer, FeedForward | GatedFeedForward):
        return type(layer).__name__
    learned = isinstance(layer.activation, nn.Module)
    other = type(layer.activation).__name__ if learned else "a custom activation"
    name = claim_feedforward(layer, ledger) or other
    return f"gated {name}" if isinstance(layer, GatedFeedForward) else name


def _feedforward_bias(layer: nn.Module) -> str:
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    kinds = {_has_bias(linear) for linear in linears}
    return "of some" if len(kinds) > 1 else "all" if kinds == {True} else "none"


def _position(attention: SelfAttention, embed: Embedding, ledger: Ledger) -> str:
    """Describe the position encoding, on embeddings or in attention."""
    in_layer, added = attention.position, embed.position
    is_added = isinstance(added, Learned | Sinusoidal)
    name = type(in_layer).__name__.lower()
    match in_layer:
        case NoPosition():
            ledger.module(in_layer, NoPosition)
            claim_added(added, ledger)
            return type(added).__name__.lower() if is_added else "none"
        case Rotary():
            claim_rotary(in_layer, ledger)
            name = name if 2 * len(in_layer.frequencies) == attention.d_head else f"partial {name}"
        case ALiBi():
            claim_alibi(attention, ledger)
        case _:
            pass
    return "of two kinds" if is_added else name


def _frequencies(position: Position) -> str:
    if not isinstance(position, Rotary):
        return "none"
    if not position.frequencies.all():
        return "zero of some pairs"
    if position.temperature == 1.0 and geometric(position) is not None:
        return "geometric"
    return "other"


def _pattern(attentions: list[SelfAttention], ledger: Ledger) -> str:
    """Describe the attention patterns: all full, or windows in every second layer."""
    first = attentions[0].pattern
    windows = type(first) is Window and len(attentions) > 1
    for i, attention in enumerate(attentions):
        ledger.expect(attention, "pattern", first if windows and i % 2 == 0 else Full())
    return "a window in every second layer" if windows else "full"


def eps_of(model: DecoderModel, ledger: Ledger) -> float:
    """The ε of all norms, except those of early exits. Raises `InputError` where it differs."""
    norms = [module for module in model.stack.modules() if isinstance(module, Norm)]
    return ledger.same(norms, "eps")


def _embedding(embed: Embedding, ledger: Ledger) -> str:
    ledger.dropout(embed.dropout)
    ledger.dropout(embed.word_dropout)
    if embed.types is not None:
        return "with sentence types"
    if embed.proj is not None:
        return "of a table of another width"
    if not isinstance(embed.norm, NoNorm):
        return "with a norm"
    ledger.module(embed.norm, NoNorm)
    return "plain"


def _scale(embed: Embedding, ledger: Ledger) -> str:
    scale = ledger.take(embed, "scale")
    if scale == 1.0:
        return "one"
    return "sqrt" if scale == embed.tokens.embedding_dim**0.5 else "other"


def _head(head: TokenHead, ledger: Ledger) -> str:
    extras = {
        "a transform": head.transform is not None,
        "a bias": head.bias is not None,
        "a scale": ledger.take(head, "scale") != 1.0,
        "softcap": ledger.take(head, "softcap") is not None,
    }
    names = [name for name, present in extras.items() if present]
    return f"with {' and '.join(names)}" if names else "plain"
