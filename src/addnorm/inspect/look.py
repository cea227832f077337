"""Inspecting a model on one text: attention, positions, and RMS and gradients by layer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.errors import InputError
from addnorm.inspect.capture import attention_weights
from addnorm.inspect.depth import ByLayer, Tower, gradient_norms, layer_states, towers_of
from addnorm.inspect.distance import ByOffset, position_curves
from addnorm.inspect.prepared_text import PreparedText, loss_of, prepare_text
from addnorm.models import ModelConfig
from addnorm.nn.attention.multihead import AttentionConfig, MultiHead
from addnorm.parts import kind_of
from addnorm.runs.trained_model import TrainedModel

View = Literal["attention", "positions", "depth", "gradients"]
VIEWS: tuple[View, ...] = ("attention", "positions", "depth", "gradients")
MOST_TOKENS: Mapping[View, int] = {"attention": 100, "positions": 500}
"""The longest text whose attention maps are readable and fit in memory."""


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
    """The results of inspecting a model on one text; what was not requested is empty."""

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
                "module": one.module,
                "rows": one.rows,
                "columns": one.columns,
                "heads": dict(zip(map(str, one.heads), one.weights.tolist(), strict=True)),
            }
            for one in self.attention
        ]
        return {
            "run": self.run,
            "text": self.text,
            "target": self.prepared.translation,
            "tokens": {**self.prepared.pieces},
            "attention": maps,
            "attention_by_distance": [asdict(one) for one in self.by_distance],
            "positions": [asdict(one) for one in self.positions],
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

    `target` is what an encoder–decoder writes, by default its own translation. `layers` and
    `heads`, from 0, are those whose attention is kept, by default all. Of the `views`, "attention"
    has the weights that the cores themselves say they used; "positions" what positions do by
    distance, and the mean attention by distance; "depth" the root mean square of the residual
    stream and of every sublayer's output; "gradients" their norms (see `gradient_norms`). Notes
    say what the model does not have. Raises `InputError` for a text that cannot be read, or is too
    long to be seen, and for a layer or head that is not there.
    """
    wanted, notes = frozenset(views), list[str]()
    if run.quantization is not None and "gradients" in wanted:
        source = run.quantization.source
        notes.append(f"no gradients of a quantised model: look at what it was made of ({source})")
        wanted -= {"gradients"}
    prepared = prepare_text(run, text, target)
    _check_length(prepared, wanted)
    asked = _asked_layers(run, layers)
    with ExitStack() as watching, torch.set_grad_enabled("gradients" in wanted):
        caught = _watch_attention(run, wanted, watching, notes)
        states = watching.enter_context(layer_states(run.model))
        with position_curves(run.model, asked) as curves:
            outputs = run.model(*prepared.inputs)
        gradients, of = dict[str, ByLayer](), ""
        if "gradients" in wanted:
            loss, of = loss_of(run, prepared, outputs)
            gradients = {} if loss is None else gradient_norms(run.model, states, loss)
            notes += [of] if loss is None else []
    if "positions" in wanted and not curves:
        layers_of = run.recipe.model.stacks
        kinds = dict.fromkeys(kind_of(layers_of[name][i].position) for name, i in asked.items())
        shown = " and ".join(map(repr, kinds))
        notes.append(f"positions of the kind {shown} do nothing by distance that can be drawn")
    maps = _maps(caught, prepared, layers, heads)
    return Look(
        run=run.name if run.folder is None else run.folder.resolve().name,
        text=text,
        prepared=prepared,
        mixer=" and ".join(dict.fromkeys(_mixer_kinds(run.recipe.model))),
        attention=maps if "attention" in wanted else (),
        by_distance=_distances(run, maps) if "positions" in wanted else (),
        positions=tuple(curves) if "positions" in wanted else (),
        depth={name: one.sizes() for name, one in states.items()} if "depth" in wanted else {},
        gradients=gradients,
        gradient_of=of if gradients else "",
        notes=tuple(notes),
    )


def _check_length(prepared: PreparedText, views: frozenset[View]) -> None:
    longest = max(len(pieces) for pieces in prepared.pieces.values())
    for view, most in MOST_TOKENS.items():
        if view in views and longest > most:
            others = ", ".join(one for one in VIEWS if MOST_TOKENS.get(one, longest) >= longest)
            raise InputError(
                f"{longest} tokens are too many to see: {view} is drawn of up to {most}. "
                f"Give a shorter text, or look at less of it: {others}"
            )


def _watch_attention(
    run: TrainedModel, views: frozenset[View], watching: ExitStack, notes: list[str]
) -> dict[str, Tensor]:
    """Record attention if requested, and add notes on layers without attention."""
    if not views & {"attention", "positions"}:
        return {}
    towers = towers_of(run.model)
    without, partly = list[str](), list[str]()
    for name, tower in towers.items():
        bare = _without_attention(tower)
        kinds = dict.fromkeys(kind_of(run.recipe.model.stacks[name][i].attention) for i in bare)
        mixed = f"by {' and '.join(kinds)}, which has no attention to draw"
        if len(bare) == len(tower.stack.blocks):
            without.append(f"{name}: its layers mix tokens {mixed}")
        elif bare:
            partly.append(f"{name}: layers {' '.join(map(str, bare))} mix tokens {mixed}")
    alone = len(views) == 1 and "attention" in views
    if alone and len(without) == len(towers) == 1:
        raise InputError(f"{run.name}: {without[0]}: look at depth or gradients")
    notes += without + partly
    try:
        return watching.enter_context(attention_weights(run.model))
    except InputError as error:
        if alone:
            raise
        notes.append(f"no attention is drawn: {error}")
        return {}


def _without_attention(tower: Tower) -> list[int]:
    """The layers that have no attention, counted from 0."""
    mixers: list[Any] = list(tower.stack.mixers)
    return [
        i
        for i, mixer in enumerate(mixers)
        if not any(isinstance(module, MultiHead) for module in mixer.modules())
    ]


def _mixer_kinds(model: ModelConfig) -> Iterator[str]:
    """What the layers of a model mix tokens by, layer by layer."""
    for layers in model.stacks.values():
        for layer in layers:
            attends = isinstance(layer.attention, AttentionConfig)
            yield "self-attention" if attends else kind_of(layer.attention)


def _asked_layers(run: TrainedModel, layers: Sequence[int]) -> dict[str, int]:
    """For each stack, the first of the layers that were asked for, by default with attention.

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
    """The first layer with attention; 0 where there is none."""
    bare = _without_attention(tower)
    return next((i for i in range(len(tower.stack.blocks)) if i not in bare), 0)


def check_number(what: str, number: int, n: int) -> None:
    """Raise `InputError` unless the number is one of `n`, counted from 0."""
    if not 0 <= number < n:
        raise InputError(f"there is no {what} {number}: this model has 0 to {n - 1}")


def _maps(
    caught: Mapping[str, Tensor],
    prepared: PreparedText,
    layers: Sequence[int],
    heads: Sequence[int],
) -> tuple[AttentionMap, ...]:
    """The attention of the layers and heads that were asked for, in the order of the layers."""
    most = max((weights.shape[1] for weights in caught.values()), default=0)
    for head in heads if caught else ():
        check_number("head", head, most)
    found: list[AttentionMap] = []
    for module, weights in caught.items():
        place = re.match(r"(\w+)\.blocks\.(\d+)\.(cross_)?attention\b", module)
        if place is None or (layers and int(place[2]) not in layers):
            continue
        stack, cross = place[1], place[3] is not None
        rows = prepared.produced if cross else prepared.pieces[stack]
        columns = prepared.pieces["encoder"] if cross else rows
        if tuple(weights.shape[2:]) != (len(rows), len(columns)):
            continue  # within a custom mixer, over something other than the tokens
        kept = tuple(head for head in heads or range(weights.shape[1]) if head < weights.shape[1])
        found.append(
            AttentionMap(
                module=module,
                stack=stack,
                cross=cross,
                layer=int(place[2]),
                heads=kept,
                weights=weights[0, list(kept)].cpu(),
                rows=rows,
                columns=columns,
            )
        )
    return tuple(one for one in found if one.heads)


def _distances(run: TrainedModel, maps: Sequence[AttentionMap]) -> tuple[ByOffset, ...]:
    """The mean weight over heads by distance, a line for each layer, for each stack."""
    found: list[ByOffset] = []
    for name, tower in towers_of(run.model).items():
        own = [one for one in maps if one.stack == name and not one.cross]
        pairs = {f"layer {one.layer}": one.weights.mean(0) for one in own}
        if pairs:
            what = "mean share of attention"
            found.append(ByOffset.of(pairs, causal=tower.causal, what=what, stack=name))
    return tuple(found)
