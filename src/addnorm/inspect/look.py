"""Inspecting a model on one text: attention, positions, and RMS and gradients by layer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.errors import InputError
from addnorm.inspect.capture import attention_weights, sharing_weights
from addnorm.inspect.depth import ByLayer, Tower, gradient_norms, layer_states, towers_of
from addnorm.inspect.distance import ByOffset, position_curves
from addnorm.inspect.prepared_text import PreparedText, loss_of, prepare_text
from addnorm.models import ModelConfig
from addnorm.nn.attention.multihead import Attending, AttentionConfig
from addnorm.parts import kind_of
from addnorm.runs.trained_model import TrainedModel

View = Literal["attention", "positions", "depth", "gradients"]
VIEWS: tuple[View, ...] = ("attention", "positions", "depth", "gradients")
MOST_TOKENS: Mapping[View, int] = {"attention": 100, "positions": 500}
"""The longest text that each view can show and that fits in memory."""


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """The weights of some heads of one attention, by the name of its module in the model."""

    module: str
    stack: str
    cross: bool
    layer: int
    heads: tuple[int, ...]
    weights: Float[Tensor, "heads query key"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """The results of inspecting a model on one text; those that were not requested are empty."""

    run: str
    text: str
    prepared: PreparedText
    mixer: str = "self-attention"
    """The token mixer of a layer."""
    attention: tuple[AttentionMap, ...] = ()
    by_distance: tuple[ByOffset, ...] = ()
    positions: tuple[ByOffset, ...] = ()
    depth: Mapping[str, ByLayer] = field(default_factory=dict[str, ByLayer])
    gradients: Mapping[str, ByLayer] = field(default_factory=dict[str, ByLayer])
    gradient_of: str = ""
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """The results as JSON-compatible values."""
        maps = [
            {
                "module": shown.module,
                "rows": shown.rows,
                "columns": shown.columns,
                "heads": dict(zip(map(str, shown.heads), shown.weights.tolist(), strict=True)),
            }
            for shown in self.attention
        ]
        return {
            "run": self.run,
            "text": self.text,
            "target": self.prepared.translation,
            "tokens": {**self.prepared.pieces},
            "attention": maps,
            "attention_by_distance": [asdict(curves) for curves in self.by_distance],
            "positions": [asdict(curves) for curves in self.positions],
            "depth": {**self.depth},
            "gradients": {**self.gradients},
            "gradient_of": self.gradient_of,
            "notes": self.notes,
        }


def look(
    run: TrainedModel,
    text: str,
    *,
    target: str | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    views: Iterable[View] = VIEWS,
) -> Look:
    """Inspect a model on one text in a single forward pass.

    `target` is the target text of an encoder–decoder, by default its own translation. `layers` and
    `heads`, from 0, select the attention to keep, by default all. Of the `views`, "attention" has
    the attention weights of the cores; "positions" the effect of positions by distance, and the
    mean attention by distance; "depth" the root mean square of the residual stream and of every
    sublayer's output; "gradients" their norms (see `gradient_norms`). Notes explain views that the
    model does not have. Raises `InputError` for a text that cannot be read or is too long to show,
    and for a layer or head that does not exist.
    """
    views, notes = frozenset(views), list[str]()
    if run.quantization is not None and "gradients" in views:
        source = run.quantization.source
        notes.append(
            f"no gradients of a quantised model: look at the model before quantisation ({source})"
        )
        views -= {"gradients"}
    run = replace(run, model=sharing_weights(run.model))
    prepared = prepare_text(run, text, target)
    _check_length(prepared, views)
    by_stack = _layer_of_each_stack(run, layers)
    with ExitStack() as recording, torch.set_grad_enabled("gradients" in views):
        weights = _record_attention(run, views, recording, notes)
        states = recording.enter_context(layer_states(run.model))
        with position_curves(run.model, by_stack) as curves:
            outputs = run.model(*prepared.inputs)
        gradients, of = dict[str, ByLayer](), ""
        if "gradients" in views:
            loss, of = loss_of(run, prepared, outputs)
            gradients = {} if loss is None else gradient_norms(run.model, states, loss)
            notes += [of] if loss is None else []
    if "positions" in views and not curves:
        stacks = run.recipe.model.stacks
        kinds = dict.fromkeys(kind_of(stacks[name][i].position) for name, i in by_stack.items())
        shown = " and ".join(map(repr, kinds))
        notes.append(f"positions of the kind {shown} have no effect by distance that can be drawn")
    maps = _maps(weights, prepared, layers, heads)
    return Look(
        run=run.name if run.folder is None else run.folder.resolve().name,
        text=text,
        prepared=prepared,
        mixer=" and ".join(dict.fromkeys(_mixer_kinds(run.recipe.model))),
        attention=maps if "attention" in views else (),
        by_distance=_by_distance(run, maps) if "positions" in views else (),
        positions=tuple(curves) if "positions" in views else (),
        depth={name: of_stack.sizes() for name, of_stack in states.items()}
        if "depth" in views
        else {},
        gradients=gradients,
        gradient_of=of if gradients else "",
        notes=tuple(notes),
    )


def _check_length(prepared: PreparedText, views: frozenset[View]) -> None:
    longest = max(len(pieces) for pieces in prepared.pieces.values())
    for view, most in MOST_TOKENS.items():
        if view in views and longest > most:
            others = ", ".join(v for v in VIEWS if MOST_TOKENS.get(v, longest) >= longest)
            raise InputError(
                f"{longest} tokens are too many to show: {view} is drawn for up to {most}. "
                f"Give a shorter text, or choose other views: {others}"
            )


def _record_attention(
    run: TrainedModel, views: frozenset[View], recording: ExitStack, notes: list[str]
) -> dict[str, Tensor]:
    """Record attention if requested, and add notes on layers without attention."""
    if not views & {"attention", "positions"}:
        return {}
    towers = towers_of(run.model)
    without, partly = list[str](), list[str]()
    for name, tower in towers.items():
        bare = _without_attention(tower)
        kinds = dict.fromkeys(kind_of(run.recipe.model.stacks[name][i].attention) for i in bare)
        mixers = f"{'mixers are' if len(kinds) > 1 else 'mixer is'} {' and '.join(kinds)}"
        if len(bare) == len(tower.stack.blocks):
            without.append(f"{name}: no layer has attention to draw: the {mixers}")
        elif bare:
            which = "layers {} have" if len(bare) > 1 else "layer {} has"
            layers = which.format(" ".join(map(str, bare)))
            partly.append(f"{name}: {layers} no attention to draw: the {mixers}")
    only_attention = len(views) == 1 and "attention" in views
    if only_attention and len(without) == len(towers) == 1:
        raise InputError(f"{run.name}: {without[0]}: look at depth or gradients")
    notes += without + partly
    try:
        return recording.enter_context(attention_weights(run.model))
    except InputError as error:
        if only_attention:
            raise
        notes.append(f"no attention is drawn: {error}")
        return {}


def _without_attention(tower: Tower) -> list[int]:
    """The layers that have no attention, counted from 0."""
    mixers: list[Any] = list(tower.stack.mixers)
    return [
        i
        for i, mixer in enumerate(mixers)
        if not any(isinstance(module, Attending) for module in mixer.modules())
    ]


def _mixer_kinds(model: ModelConfig) -> Iterator[str]:
    """The kind of token mixer in each layer."""
    for layers in model.stacks.values():
        for layer in layers:
            attends = isinstance(layer.attention, AttentionConfig)
            yield "self-attention" if attends else kind_of(layer.attention)


def _layer_of_each_stack(run: TrainedModel, layers: Sequence[int]) -> dict[str, int]:
    """The first of `layers` in each stack, or else its first layer with attention.

    Raises `InputError` for a layer that no stack has, and for a model without layers.
    """
    towers = towers_of(run.model)
    sizes = {name: len(tower.stack.blocks) for name, tower in towers.items()}
    if not any(sizes.values()):
        raise InputError(f"{run.name}: there is no layer to look at: model.n_layers = 0")
    for layer in layers:
        check_number("layer", layer, max(sizes.values()))
    return {
        name: next((layer for layer in layers if layer < size), _first_attention(towers[name]))
        for name, size in sizes.items()
    }


def _first_attention(tower: Tower) -> int:
    """The first layer with attention; 0 if there is none."""
    bare = _without_attention(tower)
    return next((i for i in range(len(tower.stack.blocks)) if i not in bare), 0)


def check_number(what: str, number: int, n: int) -> None:
    """Raise `InputError` unless the number is below `n`, counted from 0."""
    if not 0 <= number < n:
        raise InputError(f"there is no {what} {number}: this model has 0 to {n - 1}")


def _maps(
    by_module: Mapping[str, Tensor],
    prepared: PreparedText,
    layers: Sequence[int],
    heads: Sequence[int],
) -> tuple[AttentionMap, ...]:
    """The attention weights of the chosen layers and heads, ordered by layer."""
    most = max((weights.shape[1] for weights in by_module.values()), default=0)
    for head in heads if by_module else ():
        check_number("head", head, most)
    maps: list[AttentionMap] = []
    for module, weights in by_module.items():
        place = re.match(r"(\w+)\.blocks\.(\d+)\.(cross_)?attention\b", module)
        if place is None or (layers and int(place[2]) not in layers):
            continue
        stack, cross = place[1], place[3] is not None
        rows = prepared.produced if cross else prepared.pieces[stack]
        columns = prepared.pieces["encoder"] if cross else rows
        if tuple(weights.shape[2:]) != (len(rows), len(columns)):
            continue  # within a custom mixer, over something other than the tokens
        chosen = tuple(head for head in heads or range(weights.shape[1]) if head < weights.shape[1])
        maps.append(
            AttentionMap(
                module=module,
                stack=stack,
                cross=cross,
                layer=int(place[2]),
                heads=chosen,
                weights=weights[0, list(chosen)].cpu(),
                rows=rows,
                columns=columns,
            )
        )
    return tuple(shown for shown in maps if shown.heads)


def _by_distance(run: TrainedModel, maps: Sequence[AttentionMap]) -> tuple[ByOffset, ...]:
    """The mean weight over heads by distance: a line for each layer, in each stack."""
    curves: list[ByOffset] = []
    for name, tower in towers_of(run.model).items():
        pairs = {
            f"layer {shown.layer}": shown.weights.mean(0)
            for shown in maps
            if shown.stack == name and not shown.cross
        }
        if pairs:
            what = "mean share of attention"
            curves.append(ByOffset.of(pairs, causal=tower.causal, what=what, stack=name))
    return tuple(curves)
