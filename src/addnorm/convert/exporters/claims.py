"""Claims in the ledger for parts that several exporters read."""

import torch
from torch import Tensor, nn

from addnorm.models.ledger import TYPE, Ledger
from addnorm.nn.attention import EagerCore, SDPACore, SelfAttention
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.outputs import PlainOutput
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Stack
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from addnorm.nn.masks import Full
from addnorm.nn.norms import OffsetRMSNorm
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

IN_LAYERS = (Rotary, DynamicRotary, ALiBi, KERPLE, T5Bias, TransformerXL, NoPosition)
"""Position encodings that do not act on embeddings."""


def claim_dot_product(attention: MultiHead, ledger: Ledger, accepted: str) -> DotProduct:
    """Claim the core and the output of attention; return its score, which is a dot product.

    Raises `InputError` for another core and another score; `accepted` names the valid scores.
    """
    ledger.module(attention.output, PlainOutput)
    core = attention.core
    if not isinstance(core, SDPACore | EagerCore):
        raise ledger.refusal(core, TYPE, "cores of one softmax")
    if not isinstance(core.score, DotProduct):
        raise ledger.refusal(core, "score", accepted)
    ledger.module(core, SDPACore, EagerCore, FlexCore)
    if isinstance(core, SDPACore):
        ledger.leave(core, "dropout", because="nothing is dropped at inference")
    else:
        ledger.dropout(core.weights_dropout)
    score = ledger.module(core.score, DotProduct)
    ledger.take(score, "scale")
    ledger.take(score, "softcap")
    if score.weight is not None:
        raise ledger.refusal(score, "weight", accepted)
    return score


def claim_feedforward(layer: FeedForward | GatedFeedForward, ledger: Ledger) -> str:
    """Claim a feed-forward except its matrices; return its activation, empty if custom."""
    ledger.module(layer, FeedForward, GatedFeedForward)
    ledger.dropout(layer.dropout)
    names = {activation: name for name, activation in ACTIVATIONS.items()}
    return names.get(ledger.take(layer, "activation"), "")


def claim_gain(norm: nn.Module, ledger: Ledger) -> Tensor:
    """Claim the gain γ of a norm; return it in float32 without its offset from one."""
    weight = ledger.take(norm, "weight").float()
    return 1.0 + weight if isinstance(norm, OffsetRMSNorm) else weight


def claim_added(position: Position, ledger: Ledger) -> None:
    """Claim position encodings that are added to the embeddings."""
    if isinstance(position, Learned):
        ledger.module(position, Learned)
        ledger.table(position.table)
    elif isinstance(position, Sinusoidal):
        ledger.module(position, Sinusoidal)
        ledger.take(position, "theta")
        ledger.take(position, "layout")


def added_positions(embed: Embedding, rows: int, dtype: torch.dtype) -> Tensor:
    """The table of position encodings added to embeddings; unbounded ones get `rows` rows."""
    n, table = embed.position.max_len or rows, embed.tokens.weight
    zeros = torch.zeros(1, n, table.shape[1], dtype=dtype, device=table.device)
    return embed.position.embed(zeros, Context.over(zeros, Full()))[0]


def claim_rotary(position: Rotary, ledger: Ledger) -> None:
    """Claim rotary positions. Raises `InputError` for an unknown layout."""
    ledger.module(position, Rotary)
    ledger.take(position, "frequencies")
    ledger.take(position, "temperature")
    if ledger.take(position, "turn") not in LAYOUTS.values():
        raise ledger.refusal(position, "turn", " or ".join(LAYOUTS))


def claim_alibi(attention: SelfAttention, ledger: Ledger) -> None:
    """Claim the ALiBi positions of attention. Raises `InputError` for other slopes than usual."""
    n_heads = attention.q_proj.out_features // attention.d_head
    ledger.expect(ledger.module(attention.position, ALiBi), "slopes", slopes(n_heads))


def leave_unused_position(position: Position, stack: Stack, ledger: Ledger) -> None:
    """Skip the model's positions if every layer has its own."""
    used = any(module is position for module in stack.modules())
    if not used and type(position) in IN_LAYERS:
        ledger.leave_all(position, because="it would act in layers, and none has it")


def geometric(rotary: Rotary) -> tuple[float, float] | None:
    """The base and factor of frequencies `ω_i = base^(-2i/width) / factor`; None for others."""
    actual = rotary.frequencies
    if not actual.all():
        return None
    width, factor = 2 * len(actual), 1 / float(actual[0])
    base = float(actual[0] / actual[1]) ** (width / 2) if len(actual) > 1 else 10000.0
    is_geometric = torch.allclose(frequencies(width, base) / factor, actual, rtol=1e-9, atol=0.0)
    return (base, factor) if is_geometric else None
