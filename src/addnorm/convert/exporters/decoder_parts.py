"""Short descriptions of the parts of a decoder, to match against architectures.

Every description claims the items it has read in the ledger; an unknown part is described by its
type and stays unclaimed.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.models.ledger import TYPE, Ledger
from addnorm.nn.attention import EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.outputs import PlainOutput
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Block, ParallelBlock, Stack
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full, Window
from addnorm.nn.norms import BatchNorm, LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm, ScaleNorm
from addnorm.nn.positions import (
    KERPLE,
    ALiBi,
    DynamicRotary,
    Learned,
    NoPosition,
    Position,
    Rotary,
    Sinusoidal,
    T5Bias,
    TransformerXL,
)
from addnorm.nn.positions.alibi import slopes
from addnorm.nn.positions.rotary import LAYOUTS
from addnorm.nn.positions.sinusoidal import frequencies
from addnorm.nn.residuals import Branch, PostNorm, PreNorm, SandwichNorm

Norm = LayerNorm | RMSNorm | OffsetRMSNorm | ScaleNorm | BatchNorm
IN_LAYERS = (Rotary, DynamicRotary, ALiBi, KERPLE, T5Bias, TransformerXL, NoPosition)
"""Position encodings that do not act on embeddings."""

PartDescriptions = Mapping[str, str]
"""A short description for each part."""


def describe_parts(model: DecoderModel, ledger: Ledger) -> dict[str, str]:
    """Describe each part of the model."""
    ledger.module(model, DecoderModel)
    ledger.stack(model.stack)
    ledger.leave_all(model.exits, because="the logits of early exits are no part of a forward pass")
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
    ledger.module(attention.output, PlainOutput)
    d_model, inner = attention.out_proj.out_features, attention.out_proj.in_features
    return {
        "placement": _placement(block, ledger),
        "norm": _kind(norms_of(block).values(), ledger),
        "score": _score(attention, ledger),
        "qk_norm": _kind([attention.q_norm, attention.k_norm], ledger),
        "attention bias": _attention_bias(attention),
        "heads": "of d_model in all" if inner == d_model else "of another width",
        "position": _position(attention, embed, ledger),
        "frequencies": _frequencies(attention.position),
        "feedforward": _feedforward(block.feedforward, ledger),
        "feedforward bias": _feedforward_bias(block.feedforward),
    }


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
    """The norms of a block by llama.cpp's names."""
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
    """A short name of the kind of a norm."""
    match norm:
        case LayerNorm():
            ledger.module(norm, LayerNorm)
            return "layernorm without bias" if norm.bias is None else "layernorm"
        case RMSNorm() | OffsetRMSNorm():
            ledger.module(norm, RMSNorm, OffsetRMSNorm)
            return "rmsnorm"
        case NoNorm():
            ledger.module(norm, NoNorm)
            return "none"
        case _:
            return type(norm).__name__.lower()


def _score(attention: SelfAttention, ledger: Ledger) -> str:
    core = attention.core
    if not isinstance(core, SDPACore | EagerCore):
        raise ledger.refusal(core, TYPE, "cores of one softmax")
    if not isinstance(core.score, DotProduct):
        raise ledger.refusal(core, "score", "scaled dot products")
    score = claim_product(core, ledger)
    if score.weight is not None:
        raise ledger.refusal(score, "weight", "scaled dot products")
    ledger.expect(score, "scale", ledger.take(attention, "d_head") ** -0.5)
    return "scaled dot" if score.softcap is None else "scaled dot with softcap"


def claim_product(core: SDPACore | EagerCore, ledger: Ledger) -> DotProduct:
    """Claim a dot-product attention core; return its score."""
    ledger.module(core, SDPACore, EagerCore, FlexCore)
    if isinstance(core, SDPACore):
        ledger.leave(core, "dropout", because="nothing is dropped at inference")
    else:
        ledger.dropout(core.weights_dropout)
    assert isinstance(core.score, DotProduct)
    score = ledger.module(core.score, DotProduct)
    ledger.take(score, "scale")
    ledger.take(score, "softcap")
    return score


def _attention_bias(attention: SelfAttention) -> str:
    q, k, v, out = (
        _has_bias(layer)
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
    )
    if not q == k == v:
        return "of some"
    return {(False, False): "none", (True, False): "qkv", (False, True): "out"}.get((q, out), "all")


def _has_bias(layer: nn.Module) -> bool:
    return "bias" in dict(layer.named_parameters())


def _feedforward(layer: nn.Module, ledger: Ledger) -> str:
    if not isinstance(layer, FeedForward | GatedFeedForward):
        return type(layer).__name__
    ledger.module(layer, FeedForward, GatedFeedForward)
    ledger.dropout(layer.dropout)
    names = {act: name for name, act in ACTIVATIONS.items()}
    activation = ledger.take(layer, "activation")
    name = names.get(activation, "an activation of its own")
    return f"gated {name}" if isinstance(layer, GatedFeedForward) else name


def _feedforward_bias(layer: nn.Module) -> str:
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    kinds = {_has_bias(linear) for linear in linears}
    return "of some" if len(kinds) > 1 else "all" if kinds == {True} else "none"


def _position(attention: SelfAttention, embed: Embedding, ledger: Ledger) -> str:
    """Describe the position encoding, on embeddings or in attention."""
    added, turned = embed.position, attention.position
    whole = _in_layer(turned, attention, ledger)
    if not isinstance(turned, NoPosition):
        name = type(turned).__name__.lower()
        both = isinstance(added, Learned | Sinusoidal)
        return "of two kinds" if both else name if whole or name != "rotary" else f"partial {name}"
    claim_added(added, ledger)
    return type(added).__name__.lower() if isinstance(added, Learned | Sinusoidal) else "none"


def claim_added(position: Position, ledger: Ledger) -> None:
    """Claim position encodings that are added to the embeddings."""
    if isinstance(position, Learned):
        ledger.module(position, Learned)
        ledger.table(position.table)
    elif isinstance(position, Sinusoidal):
        ledger.module(position, Sinusoidal)
        ledger.take(position, "theta")
        ledger.take(position, "layout")


def _in_layer(position: Position, attention: SelfAttention, ledger: Ledger) -> bool:
    """Claim the position module of a layer; return whether it rotates the whole head."""
    match position:
        case Rotary():
            claim_rotary(position, ledger)
            return 2 * len(position.frequencies) == attention.d_head
        case ALiBi():
            ledger.module(position, ALiBi)
            n_heads = attention.q_proj.out_features // attention.d_head
            ledger.expect(position, "slopes", slopes(n_heads))
        case NoPosition():
            ledger.module(position, NoPosition)
        case _:
            pass
    return False


def claim_rotary(position: Rotary, ledger: Ledger) -> None:
    """Claim rotary positions. Raises `InputError` for an unknown layout."""
    ledger.module(position, Rotary)
    ledger.take(position, "frequencies")
    ledger.take(position, "temperature")
    if ledger.take(position, "turn") not in LAYOUTS.values():
        raise ledger.refusal(position, "turn", " or ".join(LAYOUTS))


def leave_unused_position(position: Position, stack: Stack, ledger: Ledger) -> None:
    """Ignore the model's positions if every layer has its own."""
    used = any(module is position for module in stack.modules())
    if not used and type(position) in IN_LAYERS:
        ledger.leave_all(position, because="it would act in layers, and none has it")


def _frequencies(position: Position) -> str:
    if not isinstance(position, Rotary):
        return "none"
    if position.temperature == 1.0 and geometric(position) is not None:
        return "geometric"
    return "of its own"


def geometric(rotary: Rotary) -> tuple[float, float] | None:
    """The base and factor, if the frequencies are `ω_i = base^(-2i/width) / factor`."""
    actual = rotary.frequencies
    width, factor = 2 * len(actual), 1 / float(actual[0])
    base = float(actual[0] / actual[1]) ** (width / 2) if len(actual) > 1 else 10000.0
    is_geometric = torch.allclose(frequencies(width, base) / factor, actual, rtol=1e-9, atol=0.0)
    return (base, factor) if is_geometric else None


def _pattern(attentions: list[SelfAttention], ledger: Ledger) -> str:
    """All of them full, or a window in every second layer, from the first on."""
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
    return "sqrt" if scale == embed.tokens.embedding_dim**0.5 else "of its own"


def _head(head: TokenHead, ledger: Ledger) -> str:
    extras = {
        "a transform": head.transform is not None,
        "a bias": head.bias is not None,
        "a scale": ledger.take(head, "scale") != 1.0,
        "softcap": ledger.take(head, "softcap") is not None,
    }
    names = [name for name, present in extras.items() if present]
    return f"with {' and '.join(names)}" if names else "plain"
