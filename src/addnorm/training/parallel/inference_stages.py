"""Pipeline inference: the layers are divided among processes, which compute one after another.

Every process makes each forward pass. What the process of a layer, a table or the head computes is
sent to all, so that all have the outputs of one process, to the last bit.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

from torch import Tensor, nn

from addnorm.models import Model
from addnorm.models.weights import n_bytes
from addnorm.nn.cache import KVCache
from addnorm.nn.context import Context
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.heads import TokenHead
from addnorm.training.parallel.pieces import Group, StagePiece
from addnorm.training.parallel.stages import (
    Section,
    StageBlocks,
    Stages,
    ends_stack,
    layers_of,
    sections_of,
)


def split_layers(model: nn.Module, group: Group) -> Mapping[str, StagePiece]:
    """Keep only this process's layers in `model`; return what it holds of each parameter.

    Each process has consecutive layers and their caches; the sizes are as even as layers allow. A
    table that the head shares is held by the last process alone, and heads without a table, images
    and sounds are computed by all. Raises `InputError` if there are fewer layers than processes.
    """
    sections, layers = sections_of(model), layers_of(model, group.size)
    parts = _parts(model, sections)
    ends = even_ends([_size(modules) for modules in parts], group.size)
    stages = Stages(layers, ends)
    rank_of, holders = dict[nn.Module, int](), dict[Tensor, set[int]]()
    for layer, modules in enumerate(parts):
        rank = sum(layer >= end for end in ends)
        rank_of |= dict.fromkeys(modules, rank)
        for parameter in {p for module in modules for p in module.parameters()}:
            holders.setdefault(parameter, set()).add(rank)
    for i, section in enumerate(sections):
        if isinstance(section.embed, TokenEmbedding):
            _embed_in(section, rank_of[section.embed], group)
        _run_in_turn(section, [stages.of(rank)[i] for rank in range(group.size)], group)
    head = cast(Model, model).head
    if isinstance(head, TokenHead):
        _predict_in(head, rank_of[head], group)
    pieces = dict[str, StagePiece]()
    for name, parameter in model.named_parameters():
        ranks = tuple(sorted(holders.get(parameter, range(group.size))))
        piece = pieces[name] = StagePiece(group, ranks, parameter.shape)
        if not piece.held:
            parameter.data = piece.of(parameter.data)
    return pieces


def _parts(model: nn.Module, sections: Sequence[Section]) -> list[list[nn.Module]]:
    """The modules that stay on one process together, for each layer: the block comes first."""
    parts = [[block] for section in sections for block in section.stack.blocks]
    parts[-1] += [
        m
        for name, m in model.named_children()
        if name in ("exits", "ahead") or isinstance(m, TokenHead)
    ]
    place_of: dict[Tensor, int] = {
        parameter: len(parts) - 1 for module in parts[-1][1:] for parameter in module.parameters()
    }
    end = len(parts)
    for section in reversed(sections):
        parts[end - 1].append(section.stack.norm)
        end -= len(section.stack.blocks)
        if isinstance(section.embed, TokenEmbedding):  # a shared table is in one process
            parts[place_of.setdefault(section.embed.tokens.weight, end)].append(section.embed)
    return parts


def _size(modules: Sequence[nn.Module]) -> int:
    """The size of some modules in bytes; each parameter counts once."""
    return n_bytes({parameter for module in modules for parameter in module.parameters()})


def even_ends(sizes: Sequence[int], n: int) -> tuple[int, ...]:
    """The ends of n consecutive non-empty groups that minimise the largest group sum."""
    sums = [0, *accumulate(sizes)]
    best = {end: (total, (end,)) for end, total in enumerate(sums) if end}
    for k in range(2, n + 1):
        best = {
            end: min(
                (max(best[first][0], sums[end] - sums[first]), (*best[first][1], end))
                for first in best
                if first < end
            )
            for end in range(k, len(sums))
        }
    return best[len(sizes)][1]


def _embed_in(section: Section, rank: int, group: Group) -> None:
    """Let one process embed the tokens and send the vectors to all others."""
    embed: Any = section.embed
    forward, width = embed.forward, section.width()

    def embed_in_turn(tokens: Tensor, *rest: Any) -> Tensor:
        if group.rank == rank:
            return group.sent(forward(tokens, *rest), rank)
        return group.sent(embed.tokens.weight.new_empty(*tokens.shape, width), rank)

    vars(embed)["forward"] = embed_in_turn


def _run_in_turn(section: Section, layers: Sequence[range], group: Group) -> None:
    """Let each process compute its layers of a stack and send the result to all others."""
    stack, n = section.stack, len(section.stack.blocks)
    blocks = stack.blocks = StageBlocks(stack.blocks)
    blocks.present = layers[group.rank]

    def run(x: Tensor, ctx: Context, cache: KVCache | None = None) -> Tensor:
        d_model = x.shape[-1]
        for rank, of_rank in enumerate(layers):
            if rank == group.rank:
                *_, x = [x, *stack.layer_outputs(x, ctx, cache)]  # a cache advances without layers
                x = stack.norm(x, ctx.valid) if ends_stack(of_rank, n) else x
            elif of_rank:
                x = x.new_empty(*x.shape[:-1], d_model * section.streams_after(of_rank.stop))
            x = group.sent(x, rank) if of_rank else x
        return x

    vars(stack)["forward"] = run


def _predict_in(head: TokenHead, rank: int, group: Group) -> None:
    """Let one process compute the logits and send them to all others."""
    forward: Callable[..., Tensor] = head.forward
    n = head.n_outputs

    def predict(x: Tensor, ctx: Context) -> Tensor:
        logits = forward(x, ctx) if group.rank == rank else x.new_empty(*x.shape[:-1], n)
        return group.sent(logits, rank)

    vars(head)["forward"] = predict
