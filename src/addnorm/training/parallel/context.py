"""Context parallelism: each process computes some positions of a text, and reads all keys."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderModel
from addnorm.models.transformer import StackModel
from addnorm.nn import masks
from addnorm.nn.attention.core import EagerCore
from addnorm.nn.attention.scores import Additive
from addnorm.nn.blocks import ConvolvedBlock, Mixer, Stack
from addnorm.nn.cache import AttentionCache, NewKeys, NewValues, SelfCache
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.heads import TaggingHead, TokenHead
from addnorm.nn.masks import TILE, Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.no_sublayer import NoMixer
from addnorm.nn.positions.position import Bias
from addnorm.nn.types import Keys, KeysValues, Length, Mixed, Queries, Values
from addnorm.training.parallel.own_parts import check_batch_norms, has_own_parts
from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.positions import Positions, PositionsOfAxis
from addnorm.training.parallel.tensor import placed

OF_TOKENS = (TokenHead, TaggingHead)
"""The heads whose outputs and losses are those of each token alone."""


class GatheredKeys(AttentionCache):
    """A cache that gathers the keys and values of all processes; this process's come last."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.read = False

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Return the keys and values of the other processes, followed by these."""
        self.read = True
        together = self.positions.with_others(torch.cat([k, v], -1), 2)
        keys, values = together.split([k.shape[-1], v.shape[-1]], -1)
        return keys, values

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Raise an error: training keeps all rows."""
        raise NotImplementedError


class SplitStack:
    """A stack of layers with its embedding, which computes this process's positions of a text.

    With `whole`, its outputs are those of all positions in every process, and otherwise those of
    its own. `positions` are those of the last batch.
    """

    def __init__(self, group: Group, embed: nn.Module, stack: Stack, *, whole: bool) -> None:
        self.group = group
        self.whole = whole
        self.positions = Positions(group, 1)
        embeds_own = _is_of_tokens(embed)
        self.modules = {*stack.modules(), *(embed.modules() if embeds_own else ())}
        if embeds_own:
            embed.register_forward_pre_hook(self._enter_embedding)
        vars(stack)["layer_outputs"] = self._own_outputs(stack.layer_outputs)
        for mixer in stack.mixers:
            if isinstance(mixer, NoMixer):
                continue
            module = cast(nn.Module, mixer)
            module.register_forward_pre_hook(self._give_keys)
            module.register_forward_hook(_check_read)
            if (core := _splittable(mixer)) is not None:
                vars(core)["forward"] = by_chunk(core.forward, lambda: self.positions.chunks)
        stack.norm.register_forward_pre_hook(self._enter_norm)
        stack.norm.register_forward_hook(self._leave)

    def add_exit(self, exit_head: nn.Module) -> None:
        """Let an early exit read the outputs of a layer of this stack."""

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x, ctx = args
            if self.whole:
                return self.positions.whole(x), ctx
            return x, self.positions.context(ctx)

        exit_head.register_forward_pre_hook(enter)

    def _enter_embedding(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, ctx, *types = args
        positions = self._of(ctx)
        own = [None if ids is None else positions.of(ids) for ids in types]
        return positions.of(tokens), positions.context(ctx), *own

    def _own_outputs(self, layer_outputs: Callable[..., Iterator[Tensor]]) -> Callable[..., Any]:
        def outputs(x: Tensor, ctx: Context, cache: None = None) -> Iterator[Tensor]:
            positions = self._of(ctx)
            own = positions.of(x) if x.shape[1] == positions.total else x
            return layer_outputs(own, positions.context(ctx))

        return outputs

    def _of(self, ctx: Context) -> Positions:
        self.positions = Positions(self.group, ctx.kv_slots.shape[0])
        return self.positions

    def _give_keys(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, ctx = args[:2]
        return x, ctx, GatheredKeys(self.positions)

    def _enter_norm(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, valid = args
        return x, None if valid is None else self.positions.of(valid)

    def _leave(self, _: nn.Module, __: Any, x: Tensor) -> Tensor:
        return self.positions.whole(x) if self.whole else x


def _is_of_tokens(embed: nn.Module) -> bool:
    """Whether an embedding depends on each token alone; custom ones may read neighbours."""
    return type(embed) is Embedding and not has_own_parts(embed)


def _splittable(mixer: Mixer) -> nn.Module | None:
    """The core of attention, if it can compute some queries at a time; else None.

    One with dropout of weights may not: they are drawn for all queries together.
    """
    core = getattr(mixer, "core", None)
    drawn = isinstance(core, EagerCore) and core.weights_dropout.p > 0
    return core if isinstance(core, nn.Module) and not drawn else None


def _check_read(mixer: nn.Module, args: tuple[Any, ...], _: Any) -> None:
    if not args[2].read:
        raise InputError(
            f"parallel.context: {type(mixer).__name__} does not read its cache, which has the keys "
            "and values of all processes: use attention of another kind, or parallel.data in place "
            "of context"
        )


@dataclass(frozen=True)
class SplitTexts:
    """The split of a model's texts over the processes of a group."""

    group: Group
    by_token: bool = True
    """Whether each process computes the outputs of its positions, and not those of all."""
    stacks: dict[str, SplitStack] = field(default_factory=dict[str, SplitStack])
    """By the argument of the model that is the mask of their tokens."""
    inside: dict[nn.Module, SplitStack] = field(default_factory=dict[nn.Module, SplitStack])
    """The stack whose positions a module computes."""
    axes: dict[nn.Module, tuple[int, int | None]] = field(
        default_factory=dict[nn.Module, tuple[int, int | None]]
    )
    """The axes of queries, and of gathered keys, in the inputs of dropouts of attention weights."""

    def piece(self, dropout: nn.Module, x: Tensor) -> PositionsOfAxis | None:
        """The positions in a dropout's inputs that this process has; None if it has all."""
        if dropout not in self.inside:
            return None
        axis, keys = self.axes.get(dropout, (1, None))
        piece = PositionsOfAxis(self.inside[dropout].positions, axis, keys)
        return piece if piece.fits(x.shape) else None

    def in_tiles(self, core: EagerCore, q: Tensor, k: Tensor, rows: int) -> bool:
        """Whether attention over whole texts of all `rows` is large enough to be tiled."""
        if core not in self.inside:
            return False
        width = q.shape[-1] if isinstance(core.score, Additive) else 1
        n = self.inside[core].positions.total
        return rows * q.shape[1] * n * k.shape[2] * width > masks.DENSE_LIMIT

    def own_length(self, total: int) -> int:
        """The number of positions that this process computes in texts of length `total`."""
        return total if self.group.size == 1 else len(Positions(self.group, total).own)

    def remembered(self) -> Callable[[], None]:
        """Return a function that restores the positions of the present batch."""
        present = [(stack, stack.positions) for stack in self.stacks.values()]

        def restore() -> None:
            for stack, positions in present:
                stack.positions = positions

        return restore

    def targets(self, targets: Tensor) -> Tensor:
        """The targets of this process's outputs."""
        if self.group.size == 1 or not self.by_token:
            return targets
        positions = Positions(self.group, targets.shape[1])
        own = positions.of(targets)
        return torch.full_like(own, IGNORE) if positions.stands_in else own

    def masks(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The masks of the tokens that this process computes, by argument name."""
        own = dict[str, Tensor]()
        for name, stack in self.stacks.items():
            mask, positions = inputs.get(name), stack.positions
            if positions.stands_in:
                own[name] = torch.zeros(len(next(iter(inputs.values()))), 1, dtype=torch.bool)
            elif mask is not None and mask.shape[1] == positions.total:
                own[name] = positions.of(mask)
        return own


MASKS = {"stack": "valid", "encoder": "source_valid", "decoder": "target_valid"}
"""The argument of a model that is the mask of the tokens in a stack."""


def split_texts(model: nn.Module, group: Group, *, by_token: bool) -> SplitTexts:
    """Let each process compute some positions of each text in a model's layers.

    So do the outputs `by_token`, if those of the head are of each token alone; else all processes
    compute those of all. Raises `InputError` for a part that reads other positions otherwise than
    by their keys.
    """
    check_texts(model)
    head = cast(StackModel | EncoderDecoderModel, model).head
    by_token = by_token and type(head) in OF_TOKENS
    layout = SplitTexts(group, by_token)
    for name, embed, stack in _stacks(model):
        outputs = by_token and name != "encoder"
        split = SplitStack(group, embed, stack, whole=not outputs)
        layout.stacks[MASKS[name]] = split
        exits = [*model.exits.values()] if isinstance(model, StackModel) else []
        for exit_head in exits:
            split.add_exit(exit_head)
        heads = [*exits, head] if outputs else []
        for module in (*split.modules, *(m for of_head in heads for m in of_head.modules())):
            layout.inside[module] = split
            if isinstance(module, EagerCore):
                layout.axes[module.weights_dropout] = 2, None
        for mixer in stack.mixers:
            cores = [m for m in cast(nn.Module, mixer).modules() if isinstance(m, EagerCore)]
            layout.axes.update({core.weights_dropout: (2, 3) for core in cores})
    return layout


def _stacks(model: nn.Module) -> Iterator[tuple[str, nn.Module, Stack]]:
    """Yield the name of each stack, its embedding and the stack itself."""
    if isinstance(model, StackModel):
        yield "stack", cast(nn.Module, model.embed), model.stack
    elif isinstance(model, EncoderDecoderModel):
        yield "encoder", cast(nn.Module, model.source_embed), model.encoder
        yield "decoder", cast(nn.Module, model.target_embed), model.decoder


# What cannot be split.

NO_KEYS = (
    "reads other positions, and not by the keys and values that processes exchange: use attention, "
    "or parallel.data in place of context"
)


def check_texts(model: nn.Module) -> None:
    """Raise `InputError` for the first part that cannot compute some positions of a text alone.

    Attention reads the keys of all positions; whatever else reads others would read those of one
    process.
    """
    check_batch_norms(model, "positions", "parallel.data in place of context")
    paths = {module: path for path, module in model.named_modules()}
    for _, _, stack in _stacks(model):
        for block in stack.blocks:
            if isinstance(block, ConvolvedBlock):
                convolution = block.convolution
                raise InputError(
                    f"{placed(paths[convolution])} ({type(convolution).__name__}) {NO_KEYS}"
                )
        for mixer, read in zip(stack.mixers, stack.read_layers, strict=True):
            place = f"{placed(paths[cast(nn.Module, mixer)])} ({type(mixer).__name__})"
            if read is not None:
                raise InputError(
                    f"{place} reads the keys or values of layer {read}, of which each process has "
                    "those of some positions: give parallel.data in place of context"
                )
            if not isinstance(mixer, NoMixer) and not _attends(mixer):
                raise InputError(f"{place} {NO_KEYS}")


def _attends(mixer: Mixer) -> bool:
    """Whether a mixer's only state is the keys and values of past tokens."""
    try:
        return isinstance(mixer.new_cache(), SelfCache)
    except NotImplementedError:
        return False


Core = Callable[[Queries, Keys, Values, Evaluated, Bias | None], Mixed]
"""What an attention core computes."""

FEWEST = 2**16
"""Pairs of queries and keys from which on keys are left out."""


def by_chunk(core: Core, chunks: Callable[[], Sequence[slice]]) -> Core:
    """Wrap a core so that each chunk skips the keys that none of its queries may attend to.

    Under a causal mask, a chunk may not attend to those after it, which are half of all.
    """

    def attend(q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None = None) -> Mixed:
        if isinstance(mask, Full | Causal) or q.shape[2] * k.shape[2] < FEWEST:
            return core(q, k, v, mask, bias)
        parts = list[Tensor]()
        for rows in chunks():
            pairs = _pairs(mask, rows.start, rows.stop)
            keys, values = (x.index_select(2, pairs.keys) for x in (k, v))
            parts.append(core(q[:, :, rows], keys, values, pairs.mask, pairs.of(bias)))
        return torch.cat(parts, 2)

    return attend


@dataclass(frozen=True)
class Pairs:
    """Some queries, the keys that any of them may attend to, and the mask between both."""

    rows: slice
    keys: Int[Tensor, " reached"]
    mask: Evaluated

    def of(self, bias: Bias | None) -> Bias | None:
        """The bias between these queries and keys."""
        if bias is None:
            return None

        def tile(rows: slice, keys: slice) -> Tensor:
            chosen = range(self.rows.start, self.rows.stop)[rows]
            return bias(slice(chosen.start, chosen.stop), slice(None))[..., self.keys[keys]]

        return tile


@lru_cache(maxsize=4)  # all layers of a forward pass share a mask
def _pairs(mask: Dense | Tiled, first: int, last: int) -> Pairs:
    rows = slice(first, last)
    if isinstance(mask, Dense):
        allowed = mask.allowed[:, :, rows]
        keys = _reached(allowed)
        return Pairs(rows, keys, Dense(allowed[..., keys]))
    tiles = [slice(i, min(i + TILE, last)) for i in range(first, last, TILE)]
    allowed = [mask.tile(tile, slice(None)).allowed.any(2, keepdim=True) for tile in tiles]
    keys = _reached(torch.cat(allowed, 2))
    part = mask.mask.among(mask.q_slots[rows], mask.kv_slots[keys], mask.batch)
    return Pairs(rows, keys, part)


def _reached(allowed: Bool[Tensor, "#batch 1 q_seq kv_seq"]) -> Int[Tensor, " reached"]:
    """The keys that any query may attend to, but at least one, so that the core has an input."""
    any_query = allowed.flatten(0, 2).any(0)
    any_query[0] |= ~any_query.any()
    return any_query.nonzero().squeeze(1)
