"""Position schemes and attention as functions of the distance between two tokens."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.inspect.depth import Tower, towers_of
from addnorm.models import Model
from addnorm.nn.attention.multihead import SelfAttention
from addnorm.nn.context import Context
from addnorm.nn.embed import HasTable
from addnorm.nn.functional import at_least_float32
from addnorm.nn.types import Keys, Queries


@dataclass(frozen=True, kw_only=True)
class ByOffset:
    """Lines over the offset between two tokens, `key - query`; `what` names the quantity."""

    stack: str
    what: str
    offsets: list[int]
    lines: Mapping[str, list[float]]

    @classmethod
    def of(
        cls,
        pairs: Mapping[str, Float[Tensor, "query key"]],
        *,
        causal: bool,
        what: str,
        stack: str,
    ) -> "ByOffset":
        """The mean of each matrix over pairs of equal offset; without keys ahead if `causal`."""
        n = len(next(iter(pairs.values())))
        offsets = [*range(1 - n, 1 if causal else n)]
        lines = {
            name: [float(at_least_float32(matrix).diagonal(offset).mean()) for offset in offsets]
            for name, matrix in pairs.items()
        }
        return cls(stack=stack, what=what, offsets=offsets, lines=lines)


@dataclass
class _Pass:
    """The inputs of the embedding and of one layer's attention in a forward pass."""

    embedding: Context | None = None
    attention: Context | None = None
    core: tuple[Any, ...] = field(default_factory=tuple)


@contextmanager
def position_curves(model: Model, layers: Mapping[str, int]) -> Generator[list[ByOffset]]:
    """The effect of each stack's positions by distance in one pass; the list is full afterwards.

    The curves are computed by the position modules themselves: the cosine of the vectors that two
    positions add to the embeddings, the cosine of a vector of ones rotated to both, and the bias
    added to the scores of the first text, a line for each head. `layers` gives the layer of each
    stack. An effect that is the same at all distances has no curve.
    """
    towers, curves = towers_of(model), list[ByOffset]()
    passes = {name: _Pass() for name in layers}
    with ExitStack() as hooks:
        for name, layer in layers.items():
            for handle in _record(towers[name], layer, passes[name]):
                hooks.enter_context(handle)
        yield curves
    with torch.no_grad():
        for name, layer in layers.items():
            curves += _curves(towers[name], layer, passes[name], name)


def _record(tower: Tower, layer: int, latest: _Pass) -> Iterator[RemovableHandle]:
    def embedding(_: nn.Module, args: tuple[Any, ...]) -> None:
        latest.embedding = args[1]

    def attention(_: nn.Module, args: tuple[Any, ...]) -> None:
        latest.attention = args[1]

    def core(_: nn.Module, args: tuple[Any, ...]) -> None:
        latest.core = args

    yield tower.embed.register_forward_pre_hook(embedding)
    module = tower.stack.blocks[layer].attention
    if isinstance(module, SelfAttention):
        yield module.register_forward_pre_hook(attention)
        yield module.core.register_forward_pre_hook(core)


def _curves(tower: Tower, layer: int, latest: _Pass, stack: str) -> Iterator[ByOffset]:
    module = tower.stack.blocks[layer].attention
    pairs: dict[str, dict[str, Tensor]] = {}
    if isinstance(tower.embed, HasTable) and latest.embedding is not None:
        slots = latest.embedding.q_slots
        zeros = torch.zeros_like(tower.embed.tokens(torch.zeros_like(slots)[None]))
        added = tower.embed.position.embed(zeros, latest.embedding)
        pairs["similarity of two positions (cosine)"] = {"embedding": cosines(added[0], added[0])}
    if isinstance(module, SelfAttention) and latest.attention is not None:
        q, k, _, _, bias = latest.core
        rotated = _rotated(module, torch.ones_like(q), torch.ones_like(k), latest.attention)
        pairs["equal vectors, rotated (cosine)"] = {f"layer {layer}": cosines(*rotated)}
        if bias is not None:
            rows = bias(slice(None), slice(None))[0]
            pairs["added to the score"] = {f"head {i}": row for i, row in enumerate(rows)}
    for what, matrices in pairs.items():
        curves = ByOffset.of(matrices, causal=tower.causal, what=what, stack=stack)
        values = [value for line in curves.lines.values() for value in line]
        if max(values) - min(values) > 1e-4:
            yield curves


def _rotated(
    attention: SelfAttention, q: Queries, k: Keys, ctx: Context
) -> tuple[Float[Tensor, "query d_head"], Float[Tensor, "key d_head"]]:
    """The effect of the position scheme on queries and keys of the first head."""
    q, k = attention.position.rotate(q, k, ctx)
    q, k = attention.position.rotate_all(q, k, ctx)
    return q[0, 0], k[0, 0]


def cosines(
    queries: Float[Tensor, "query width"], keys: Float[Tensor, "key width"]
) -> Float[Tensor, "query key"]:
    """Pairwise cosine similarity of two sets of vectors; 0 for a zero vector."""
    queries, keys = (nn.functional.normalize(at_least_float32(x), dim=-1) for x in (queries, keys))
    return queries @ keys.mT
