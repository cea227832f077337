"""Attention of the next tokens over cached keys and values, by our operator.

It reads them where they are (`kernels/cached_attention.cpp`): in the buffer of a text, or in the
slots of one for many texts, instead of copying those of each text side by side.
`kernels.build.load_operator` makes it available.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.kernels.cached_attention import DTYPES
from addnorm.nn import functional
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.kernels import EVERYTHING, BiasTensor, Sinks
from addnorm.nn.attention.multihead import CrossAttention, SelfAttention
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.sinks import SinkCore
from addnorm.nn.cache import Attention
from addnorm.nn.masks import Causal, Dense, Full, Mask, Tiled
from addnorm.nn.positions.position import Bias, Position
from addnorm.nn.types import Keys, Mixed, Queries, Values
from addnorm.parts import is_ours

CORES = (SDPACore, FlexCore, EagerCore, SinkCore)
"""The attention cores that compute what the operator does."""


def cached_attention(
    q: Queries,
    keys: Keys,
    values: Values,
    mask: Mask,
    bias: Bias | None,
    score: DotProduct,
    sinks: Sinks | None = None,
) -> Mixed:
    """`softmax(score(q, k) + bias) v` over the keys and values in the buffers of each text.

    `sinks` as in `SinkCore`. Computed in float32. A query that may attend to nothing gives zeros.
    Keys and values have a type of `DTYPES`, on a CPU: that of the queries, or bfloat16.
    """
    queries, tile = score.queries(q).transpose(1, 2), _tile(bias)
    return _mixed(queries, keys, values, None, mask, tile, score, sinks).transpose(1, 2)


def paged_attention(
    q: Float[Tensor, "rows heads 1 d_head"],
    keys: Float[Tensor, "slots kv_heads d_head"],
    values: Float[Tensor, "slots kv_heads d_value"],
    slots: Int[Tensor, "texts kv_seq"],
    mask: Mask,
    bias: Bias | None,
    score: DotProduct,
    sinks: Sinks | None = None,
) -> Mixed:
    """As `cached_attention`, of one query in each row over the keys and values in these slots.

    Kwon et al. 2023 (arXiv 2309.06180), §4.3. Slots and mask are those of as many texts as there
    are rows, or of fewer, each shared by as many consecutive rows.
    """
    queries = score.queries(q).transpose(1, 2)
    tile = _tile(bias)
    if (texts := slots.shape[0]) != (rows := q.shape[0]):
        queries = queries[:, 0].unflatten(0, (texts, rows // texts))
        if tile is not None and tile.shape[0] == rows:
            tile = tile[:, :, 0].unflatten(0, (texts, rows // texts)).transpose(1, 2)
    k, v = (x.transpose(0, 1)[None] for x in (keys, values))
    mixed = _mixed(queries, k, v, slots.contiguous(), mask, tile, score, sinks)
    return mixed.flatten(0, 1)[:, :, None]


def _mixed(
    queries: Float[Tensor, "texts queries heads d_head"],
    keys: Float[Tensor, "#texts kv_heads slots d_head"],
    values: Float[Tensor, "#texts kv_heads slots d_value"],
    slots: Int[Tensor, "texts kv_seq"] | None,
    mask: Mask,
    bias: Float[Tensor, "#texts #heads #queries kv_seq"] | None,
    score: DotProduct,
    sinks: Sinks | None,
) -> Float[Tensor, "texts queries heads d_value"]:
    return torch.ops.addnorm.cached_attention(
        queries.contiguous(),
        keys,
        values,
        slots,
        _allowed(mask, queries.shape[1]),
        bias,
        None if sinks is None else sinks.float().contiguous(),
        score.scale,
        score.softcap,
    )


def _tile(bias: Bias | None) -> BiasTensor | None:
    """The bias of all pairs."""
    return None if bias is None else bias(EVERYTHING, EVERYTHING).float().contiguous()


def _allowed(mask: Mask, queries: int) -> Bool[Tensor, "#texts #queries kv_seq"] | None:
    """Which keys the queries of each text may attend to; None means all."""
    match mask:
        case Full():
            return None
        case Causal() if queries == 1:  # all keys are its own or earlier
            return None
        case Dense(allowed):
            return allowed[:, 0].contiguous()
        case Tiled():
            return mask.tile(EVERYTHING, EVERYTHING).allowed[:, 0].contiguous()
        case _:
            raise TypeError(f"{type(mask).__name__} of several queries is not evaluated")


def sinks_of(core: nn.Module) -> Sinks | None:
    """The sinks of a core, if it has any."""
    return core.sinks if isinstance(core, SinkCore) else None


def operator_scores(
    attentions: Iterable[object], keys: Iterable[Tensor | None]
) -> list[DotProduct | None]:
    """The score of each attention that the operator can compute, None of any other.

    `keys` are the buffers of each, None of those that keep no keys.
    """
    return [
        None if buffer is None else _operator_score(attention, buffer)
        for attention, buffer in zip(attentions, keys, strict=True)
    ]


def _operator_score(attention: object, keys: Tensor) -> DotProduct | None:
    if keys.device.type != "cpu" or keys.dtype not in DTYPES:
        return None
    match attention:
        case SelfAttention():
            return self_score(attention, keys.shape[-1])
        case CrossAttention():
            return core_score(attention.core, keys.shape[-1])
        case _:
            return None


def self_score(attention: Attention, d_head: int) -> DotProduct | None:
    """The score of self-attention that the operator can compute; None for any other attention.

    The operator does not know positions that turn all keys again at every step, or whose bias
    reads them.
    """
    position = type(attention.position)
    if (position.rotate_all, position.content_bias) != (Position.rotate_all, Position.content_bias):
        return None
    return core_score(attention.core, d_head)


def core_score(core: nn.Module, d_head: int) -> DotProduct | None:
    """The score of a core that the operator can compute; None for any other core.

    The operator knows dot products with a softcap, masks, biases and sinks.
    """
    if not isinstance(core, SDPACore | EagerCore | SinkCore) or type(core) not in CORES:
        return None
    score = core.score
    if score is None or score is functional.scaled_dot_scores:
        return DotProduct(d_head**-0.5)
    return score if isinstance(score, DotProduct) and is_ours(type(score)) else None
