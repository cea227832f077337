"""The smaller model: its configuration, and the weights that it keeps."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.ledger import Item, equal, items_of, shown
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
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
"""Settings that follow from the shapes of the weights, and dropout rates."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What stays of a model; what is not named stays as it is."""

    heads: float | None = None
    """The share of head groups to remove of every attention."""
    feedforward: float | None = None
    """The share of rows to remove of every feed-forward."""
    units: Kept = field(default_factory=dict[str, tuple[int, ...]])
    """The units that stay, by the path of their sublayer in the old model."""
    of: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many units each of these sublayers had."""
    layers: Kept = field(default_factory=dict[str, tuple[int, ...]])
    """The layers that stay, by stack."""


def smaller_config(config: ModelConfig, pruning: Pruning) -> ModelConfig:
    """The configuration of the pruned model; the width of a head stays.

    Raises `InputError` where an early exit stands on a layer that leaves.
    """
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
    kept = next(iter(layers.values()))
    changes = config.fields_of_layers(layers)
    if not isinstance(config, EncoderDecoderConfig) and config.exits:
        changes["exits"] = _new_exits(config.exits, kept, config.n_layers)
    return replace(config, **changes)


def _new_exits(exits: Sequence[int], kept: tuple[int, ...], n_layers: int) -> tuple[int, ...]:
    """The layers, counted from one, that the exits stand on in the pruned model."""
    below = [exit_layer - 1 for exit_layer in exits]
    if {*below} <= {*kept} and max(below) < kept[-1]:
        return tuple(kept.index(i) + 1 for i in below)
    more = {*kept, *below}
    some = [more | {max(*more, max(below) + 1)}, {*below, n_layers - 1}]
    found = [f"give `layers = {_listed(sorted(one))}`" for one in some if len(one) < n_layers]
    end = found[0] if found else f"none of these {n_layers} layers can leave"
    raise InputError(
        f"`layers = {_listed(kept)}`: {_standing(below)}, counted from 0, which must stay with a "
        f"layer above: {end}"
    )


def _standing(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"an early exit stands on layer {layers[0]}"
    return f"early exits stand on layers {' and '.join(map(str, layers))}"


def _listed(layers: Iterable[int]) -> str:
    return " ".join(map(str, layers))


@torch.no_grad()
def keep_weights(old: Model, new: Model, pruning: Pruning) -> None:
    """Copy into `new` the weights that stay.

    Raises `InputError` for a part of the new model that computes something else than the old one
    did in its place, such as one that depends on the number of layers.
    """
    origin, cuts, sources = _origin(new, pruning), _cuts(old, pruning), _tensors(old)
    for name, target in _tensors(new).items():
        source = sources.get(origin(name))
        if source is None:
            raise InputError(f"`layers`: the old model has no {origin(name)}, which {name} needs")
        if id(source) in cuts:
            axis, kept = cuts[id(source)]
            source = source.index_select(axis, kept.to(source.device))
        if source.shape != target.shape:
            raise InputError(
                f"{name} would have shape {list(source.shape)}, and needs {list(target.shape)}"
            )
        target.copy_(source)
    _check_same_function(old, new, origin)


def _origin(new: Model, pruning: Pruning) -> Callable[[str], str]:
    """The name in the old model of what has a name in the new one.

    Positions that the layers share are those of the first layer of the new model that has them.
    """
    in_layers = _positions_in_layers(new)

    def old_name(name: str) -> str:
        for path, layer in in_layers.items():
            if f"{name}.".startswith(f"{path}."):
                name = layer + name[len(path) :]
        if found := re.match(r"(\w+)\.blocks\.(\d+)(?=\.|$)", name):
            stack, i = found[1], int(found[2])
            kept = pruning.layers.get(stack)
            return name if kept is None else f"{stack}.blocks.{kept[i]}{name[found.end() :]}"
        if found := re.match(r"exits\.(\d+)(?=\.|$)", name):
            kept = pruning.layers.get("stack")
            i = int(found[1]) if kept is None else kept[int(found[1]) - 1] + 1
            return f"exits.{i}{name[found.end() :]}"
        return name

    return old_name


def _positions_in_layers(model: Model) -> dict[str, str]:
    """For the positions of each embedding, where they first stand in a layer."""
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
    """The parameters and the persistent buffers by all of their names."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    kept = model.state_dict().keys()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | {name: one for name, one in buffers.items() if name in kept}


def _cuts(old: Model, pruning: Pruning) -> Mapping[int, tuple[int, Tensor]]:
    """The axis and the entries that stay along it, by the identity of a tensor of the old model."""
    found: dict[int, tuple[int, Tensor]] = {}
    tensors = _tensors(old)
    for path, kept in pruning.units.items():
        axes = OF_HEADS if path.endswith("attention") else OF_ROWS
        for name, axis in axes.items():
            tensor = tensors.get(f"{path}.{name}")
            if tensor is not None:
                width = tensor.shape[axis] // pruning.of[path]
                starts = torch.tensor(kept)[:, None] * width
                found[id(tensor)] = axis, (starts + torch.arange(width)).flatten()
    return found


def _check_same_function(old: Model, new: Model, origin: Callable[[str], str]) -> None:
    """Raise `InputError` for a setting of the new model that is another one in the old."""
    for item in items_of(new):
        if item.kind in ("parameter", "buffer") or item.name in SIZES:
            continue
        place = origin(item.path)
        was = Item(old.get_submodule(place), place, item.name)
        if not _same(item, was):
            raise InputError(
                f"{item} was {shown(was.value)} in the old model: it depends on the number of the "
                "layer or of the layers, and cannot be pruned so"
            )


def _same(item: Item, was: Item) -> bool:
    now, before = item.value, was.value
    if now is item.module:
        return type(now) is type(before)
    if type(now) is type(before) and type(now).__eq__ is object.__eq__:
        return not callable(now) or now is before
    return equal(now, before)
