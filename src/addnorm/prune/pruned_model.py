"""The pruned model: its configuration and the weights that it keeps."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from warnings import warn

import torch
from torch import Tensor

from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.ledger import Item, equal, items_of, shown
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.positions.position import Position
from addnorm.prune.selection import Kept, n_kept

OF_HEADS = {
    "q_proj.weight": 0,
    "q_proj.bias": 0,
    "k_proj.weight": 0,
    "k_proj.bias": 0,
    "v_proj.weight": 0,
    "v_proj.bias": 0,
    "output.proj.weight": 0,
    "out_proj.weight": 1,
    "position.table.weight": 1,
}
"""The weights of attention that belong to heads, and the axis along which they do."""
OF_ROWS = {
    "up_proj.weight": 0,
    "up_proj.bias": 0,
    "gate_proj.weight": 0,
    "gate_proj.bias": 0,
    "down_proj.weight": 1,
}
"""The weights of a feed-forward that belong to its rows."""
SIZES = {"n_heads", "in_features", "out_features", "num_embeddings", "embedding_dim", "p"}
"""Settings that are determined by the shapes of the weights, and dropout rates."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """The parts of a model to keep; parts that are not named here stay whole."""

    heads: float | None = None
    """The share of head groups to remove of every attention."""
    feedforward: float | None = None
    """The share of rows to remove of every feed-forward."""
    units: Kept = field(default_factory=dict[str, tuple[int, ...]])
    """The units to keep, by the path of their sublayer in the old model."""
    of: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of units that each of these sublayers had."""
    layers: Kept = field(default_factory=dict[str, tuple[int, ...]])
    """The layers to keep, by stack."""


def smaller_config(config: ModelConfig, pruning: Pruning) -> ModelConfig:
    """The configuration of the pruned model, whose heads keep their width.

    Multi-token prediction, whose modules read the model as it was, is left out. Raises `InputError`
    if a layer with an early exit is removed.
    """
    if isinstance(config, DecoderConfig) and config.mtp is not None:
        config = replace(config, mtp=None)
        warn(
            "model.mtp is left out: its modules read the model as it was before pruning",
            IgnoredSettings,
            stacklevel=2,
        )
    if pruning.heads is not None:
        config = _narrower_attention(config, pruning.heads)
    if pruning.feedforward is not None:
        config = _narrower_feedforward(config, pruning.feedforward)
    return _shallower(config, pruning.layers) if pruning.layers else config


def _narrower_attention(config: ModelConfig, share: float) -> ModelConfig:
    def narrower(attention: Any) -> Any:
        if not isinstance(attention, AttentionConfig):
            return attention
        heads = attention.heads(config.d_model)
        groups = n_kept(heads.n_kv_heads, share, "heads")
        return replace(
            attention,
            n_heads=groups * (heads.n_heads // heads.n_kv_heads),
            n_kv_heads=None if attention.n_kv_heads is None else groups,
            d_head=heads.d_head,
        )

    return config.with_parts("attention", narrower)


def _narrower_feedforward(config: ModelConfig, share: float) -> ModelConfig:
    def narrower(feedforward: Any) -> Any:
        if not isinstance(feedforward, FeedForwardConfig | GatedFeedForwardConfig):
            return feedforward
        plain = isinstance(feedforward, FeedForwardConfig)
        width = feedforward.d_ff or (4 * config.d_model if plain else 8 * config.d_model // 3)
        return replace(feedforward, d_ff=n_kept(width, share, "feedforward"))

    return config.with_parts("feedforward", narrower)


def _shallower(config: ModelConfig, layers: Kept) -> ModelConfig:
    remaining = next(iter(layers.values()))
    changes = config.fields_of_layers(layers)
    if not isinstance(config, EncoderDecoderConfig) and config.exits:
        changes["exits"] = _new_exits(config.exits, remaining, config.n_layers)
    return replace(config, **changes)


def _new_exits(exits: Sequence[int], remaining: tuple[int, ...], n_layers: int) -> tuple[int, ...]:
    """The layers of the exits in the pruned model, counted from one."""
    below = [exit_layer - 1 for exit_layer in exits]
    if {*below} <= {*remaining} and max(below) < remaining[-1]:
        return tuple(remaining.index(i) + 1 for i in below)
    with_exits = {*remaining, *below}
    valid = [with_exits | {max(*with_exits, max(below) + 1)}, {*below, n_layers - 1}]
    hints = [f"give `layers = {_listed(sorted(i))}`" for i in valid if len(i) < n_layers]
    hint = hints[0] if hints else f"none of these {n_layers} layers can be removed"
    places = (
        f"an early exit stands on layer {below[0]}"
        if len(below) == 1
        else f"early exits stand on layers {' and '.join(map(str, below))}"
    )
    raise InputError(
        f"`layers = {_listed(remaining)}`: {places}, counted from 0, which must stay with a layer "
        f"above: {hint}"
    )


def _listed(layers: Iterable[int]) -> str:
    return " ".join(map(str, layers))


@torch.no_grad()
def keep_weights(old: Model, new: Model, pruning: Pruning) -> None:
    """Copy the weights to keep into `new`.

    Raises `InputError` for a part of the new model that computes something other than the old one
    in its place, such as one that depends on the number of layers.
    """
    origin, cuts, sources = _origin(new, pruning), _cuts(old, pruning), _tensors(old)
    idle = _idle_positions(new)
    for name, target in _tensors(new).items():
        if name.startswith(idle):
            continue
        source = sources.get(origin(name))
        if source is None:
            raise InputError(f"`layers`: the old model has no {origin(name)}, which {name} needs")
        if id(source) in cuts:
            axis, entries = cuts[id(source)]
            source = source.index_select(axis, entries.to(source.device))
        if source.shape != target.shape:
            raise InputError(
                f"{name} would have shape {list(source.shape)}, and needs {list(target.shape)}"
            )
        target.copy_(source)
    _check_same_function(old, new, origin, idle)


def _idle_positions(model: Model) -> tuple[str, ...]:
    """The prefixes of positions that act in attention alone, in a model where no layer has them."""
    modules = [*model.named_modules(remove_duplicate=False)]
    in_layers = {id(module) for path, module in modules if ".blocks." in path}
    return tuple(
        f"{path}."
        for path, module in modules
        if isinstance(module, Position)
        and type(module).embed is Position.embed
        and id(module) not in in_layers
    )


def _origin(new: Model, pruning: Pruning) -> Callable[[str], str]:
    """A function from a part's name in the new model to its name in the old one.

    Positions that layers share are those of the first layer of the new model that has them.
    """
    in_layers = _positions_in_layers(new)

    def old_name(name: str) -> str:
        for path, layer in in_layers.items():
            if f"{name}.".startswith(f"{path}."):
                name = layer + name[len(path) :]
        if match := re.match(r"(\w+)\.blocks\.(\d+)(?=\.|$)", name):
            stack, i = match[1], int(match[2])
            remaining = pruning.layers.get(stack)
            i = i if remaining is None else remaining[i]
            return f"{stack}.blocks.{i}{name[match.end() :]}"
        if match := re.match(r"exits\.(\d+)(?=\.|$)", name):
            remaining = pruning.layers.get("stack")
            i = int(match[1]) if remaining is None else remaining[int(match[1]) - 1] + 1
            return f"exits.{i}{name[match.end() :]}"
        return name

    return old_name


def _positions_in_layers(model: Model) -> dict[str, str]:
    """For each path of a position module, its first path inside a layer."""
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path.endswith(".position"):
            paths.setdefault(id(module), []).append(path)
    return {
        path: next(other for other in shared if ".blocks." in other)
        for shared in paths.values()
        for path in shared
        if ".blocks." not in path and any(".blocks." in other for other in shared)
    }


def _tensors(model: Model) -> dict[str, Tensor]:
    """The parameters and persistent buffers, under every one of their names."""
    persistent = model.state_dict().keys()
    buffers = model.named_buffers(remove_duplicate=False)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | {name: buffer for name, buffer in buffers if name in persistent}


def _cuts(old: Model, pruning: Pruning) -> Mapping[int, tuple[int, Tensor]]:
    """The axis to cut and the entries to keep, by the identity of each old tensor."""
    cuts: dict[int, tuple[int, Tensor]] = {}
    tensors = _tensors(old)
    for path, units in pruning.units.items():
        axes = OF_HEADS if path.endswith("attention") else OF_ROWS
        for name, axis in axes.items():
            tensor = tensors.get(f"{path}.{name}")
            if tensor is not None:
                width = tensor.shape[axis] // pruning.of[path]
                starts = torch.tensor(units)[:, None] * width
                cuts[id(tensor)] = axis, (starts + torch.arange(width)).flatten()
    return cuts


def _check_same_function(
    old: Model, new: Model, origin: Callable[[str], str], idle: tuple[str, ...]
) -> None:
    """Raise `InputError` for a setting of the new model that differs from the old one's."""
    for item in items_of(new):
        if item.kind in ("parameter", "buffer") or item.name in SIZES:
            continue
        if f"{item.path}.".startswith(idle):
            continue
        path = origin(item.path)
        before = Item(old.get_submodule(path), path, item.name)
        if not _same(item, before.value):
            raise InputError(
                f"{item} was {shown(before.value)} in the old model: it depends on the number of "
                "the layer or of the layers, so these layers cannot be removed"
            )


def _same(item: Item, before: Any) -> bool:
    now = item.value
    if now is item.module:
        return type(now) is type(before)
    if type(now) is type(before) and type(now).__eq__ is object.__eq__:
        return not callable(now) or now is before
    return equal(now, before)
