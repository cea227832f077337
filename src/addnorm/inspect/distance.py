"""Position schemes and attention as functions of the distance between two tokens."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
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
    """Lines over the offset of two tokens, `key - query`; `what` says of what."""

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
        """The mean of each matrix over all pairs of one offset; if `causal`, of no key ahead."""
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
    """What the positions of each stack do by distance in one pass; the list is full afterwards.

    They are asked for it themselves, as they act: for the cosine of what two positions add to the
    embeddings, for that of a vector of ones turned to both, and for what is added to the scores of
    the first text, a line for each head. `layers` says which layer of each stack is asked. What
    does nothing has no curve.
    """
    towers, found = towers_of(model), list[ByOffset]()
    passes = {name: _Pass() for name in layers}
    hooks = [
        hook for name, layer in layers.items() for hook in _watch(towers[name], layer, passes[name])
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    with torch.no_grad():
        for name, layer in layers.items():
            found += _curves(towers[name], layer, passes[name], name)


def _watch(tower: Tower, layer: int, seen: _Pass) -> Iterator[RemovableHandle]:
    def embedding(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen.embedding = args[1]

    def attention(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen.attention = args[1]

    def core(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen.core = args

    yield tower.embed.register_forward_pre_hook(embedding)
    module = tower.stack.blocks[layer].attention
    if isinstance(module, SelfAttention):
        yield module.register_forward_pre_hook(attention)
        yield module.core.register_forward_pre_hook(core)


def _curves(tower: Tower, layer: int, seen: _Pass, stack: str) -> Iterator[ByOffset]:
    module = tower.stack.blocks[layer].attention
    pairs: dict[str, dict[str, Tensor]] = {}
    if isinstance(tower.embed, HasTable) and seen.embedding is not None:
        slots = seen.embedding.q_slots
        nothing = torch.zeros_like(tower.embed.tokens(torch.zeros_like(slots)[None]))
        added = tower.embed.position.embed(nothing, seen.embedding)
        pairs["similarity of two positions (cosine)"] = {"embedding": cosines(added[0], added[0])}
    if isinstance(module, SelfAttention) and seen.attention is not None:
        q, k, _, _, bias = seen.core
        turned = _turned(module, torch.ones_like(q), torch.ones_like(k), seen.attention)
        pairs["equal vectors, turned (cosine)"] = {f"layer {layer}": cosines(*turned)}
        if bias is not None:
            rows = bias(slice(None), slice(None))[0]
            pairs["added to the score"] = {f"head {i}": row for i, row in enumerate(rows)}
    for what, matrices in pairs.items():
        found = ByOffset.of(matrices, causal=tower.causal, what=what, stack=stack)
        values = [value for line in found.lines.values() for value in line]
        if max(values) - min(values) > 1e-4:
            yield found


def _turned(
    attention: SelfAttention, q: Queries, k: Keys, ctx: Context
) -> tuple[Float[Tensor, "query d_head"], Float[Tensor, "key d_head"]]:
    """The effect of the position scheme on queries and keys of the first head."""
    q, k = attention.position.rotate(q, k, ctx)
    q, k = attention.position.rotate_all(q, k, ctx)
    return q[0, 0], k[0, 0]


def cosines(
    one: Float[Tensor, "query width"], other: Float[Tensor, "key width"]
) -> Float[Tensor, "query key"]:
    """Pairwise cosine similarity of two sets of vectors; 0 for a zero vector."""
    one, other = (nn.functional.normalize(at_least_float32(x), dim=-1) for x in (one, other))
    return one @ other.mT
