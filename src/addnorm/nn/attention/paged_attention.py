"""Attention of one query in each row over keys and values in the slots of a buffer.

The operator `addnorm::paged_attention` reads them where they are (`kernels/paged_attention.cpp`),
instead of copying those of each row side by side. `kernels.build.load_operator` makes it available.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.nn import functional
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.attention.kernels import EVERYTHING, Sinks
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.sinks import SinkCore
from addnorm.nn.cache import Attention
from addnorm.nn.masks import Causal, Dense, Full, Mask, Tiled
from addnorm.nn.positions.position import Bias, Position
from addnorm.nn.types import Mixed
from addnorm.parts import is_ours

OPERATOR = "paged_attention"
"""The operator's name."""

CORES = (SDPACore, FlexCore, EagerCore, SinkCore)
"""The attention cores that compute what the operator does."""

DTYPES = (torch.float32, torch.bfloat16)
"""The types of keys and values that the operator reads."""

torch.library.define(
    "addnorm::paged_attention",
    "(Tensor q, Tensor keys, Tensor values, Tensor slots, Tensor? allowed, Tensor? bias, "
    "Tensor? sinks, float scale, float? softcap) -> Tensor",
)


def _shape(q: Tensor, keys: Tensor, values: Tensor, *others: object) -> Tensor:
    return q.new_empty(*q.shape[:2], values.shape[2])


torch.library.register_fake("addnorm::paged_attention", _shape)


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
    """`softmax(score(q, k) + bias) v` over the keys and values in these slots of each row.

    Kwon et al. 2023 (arXiv 2309.06180), §4.3; `sinks` as in `SinkCore`. Computed in float32.
    Slots and mask are those of as many texts as there are rows, or of fewer, each shared by as many
    consecutive rows. A row that may attend to nothing gives zeros. Keys and values have one of the
    `DTYPES` on a CPU.
    """
    tile = None if bias is None else bias(EVERYTHING, EVERYTHING)[:, :, 0]
    mixed = torch.ops.addnorm.paged_attention(
        score.queries(q)[:, :, 0].contiguous(),
        keys,
        values,
        slots.contiguous(),
        _allowed(mask),
        None if tile is None else tile.float().contiguous(),
        None if sinks is None else sinks.float().contiguous(),
        score.scale,
        score.softcap,
    )
    return mixed[:, :, None]


def _allowed(mask: Mask) -> Bool[Tensor, "#texts kv_seq"] | None:
    """Which keys the queries of each text may attend to; None means all."""
    match mask:
        case Full() | Causal():  # causal with one query: all keys are its own or earlier
            return None
        case Dense(allowed):
            return allowed[:, 0, 0].contiguous()
        case Tiled():
            return mask.tile(EVERYTHING, EVERYTHING).allowed[:, 0, 0].contiguous()
        case _:
            raise TypeError(f"{type(mask).__name__} is not evaluated")


def paged_score(attention: Attention, d_head: int) -> DotProduct | None:
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
