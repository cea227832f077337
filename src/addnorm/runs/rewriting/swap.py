"""Swapping parts of a trained model: transfers its weights to the new parts, measures the cost."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from rich.console import Console

from addnorm.arguments import known_keywords
from addnorm.atomic import atomic_directory
from addnorm.convert.core.differences import differences
from addnorm.convert.transfer.model import (
    Kind,
    Layers,
    TransferReport,
    config_with_folding,
    evenly_spaced_layers,
    layer_counts,
    transfer_weights,
)
from addnorm.errors import InputError, path_of
from addnorm.long_work import long_work
from addnorm.models import EncoderDecoderConfig, Model, ModelConfig, refuse_dual
from addnorm.nn.heads import has_joint_loss
from addnorm.parts import kind_of
from addnorm.runs.files.lock import locked_empty
from addnorm.runs.files.quantization_file import check_float
from addnorm.runs.files.weights import build_model
from addnorm.runs.options import SwapOptions
from addnorm.runs.recipes.overrides import changed, with_depth
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.rewriting.measuring import SILENT, data_to_measure, measured
from addnorm.runs.rewriting.recovery import Recovery
from addnorm.runs.saving import write_run
from addnorm.runs.trained_model import TrainedModel, moved_copy
from addnorm.training.precision import resolve_device


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the model: the origin and number of its weights."""

    name: str
    kind: Kind
    how: str
    n_weights: int


@dataclass(frozen=True, kw_only=True)
class SwapReport:
    """The new run, how its weights were transferred, and the scores."""

    run: TrainedModel
    transfer: TransferReport
    added: tuple[str, ...]
    """Additional configuration changes that an exact transfer requires."""
    figures: Mapping[str, Mapping[str, float]]
    """The scores before, after and, with training, after recovery."""
    unmeasured: str | None
    """The reason why nothing was measured; None if it was."""

    def parts(self) -> list[Part]:
        """The weights by part, over all layers together, in model order."""
        weights, origins = self.run.weights, self.transfer.origins
        parts: dict[str, list[str]] = {}
        for name in origins:
            parts.setdefault(part_of(name), []).append(name)
        return [
            Part(
                name=part,
                kind=_worst({origins[name].kind for name in names}),
                how="; ".join(dict.fromkeys(origins[n].how for n in names if origins[n].how)),
                n_weights=sum(weights[name].numel() for name in names),
            )
            for part, names in parts.items()
        ]

    def unused(self) -> list[str]:
        """The parts of the old model that the new model does not use."""
        return list(dict.fromkeys(part_of(name) for name in self.transfer.unused))


def _worst(kinds: set[Kind]) -> Kind:
    """The transfer kind of a part is the worst of its weights."""
    order: tuple[Kind, ...] = ("new", "derived", "folded", "exact")
    return next(kind for kind in order if kind in kinds)


def part_of(name: str) -> str:
    """The part that a weight belongs to, without the layer: `decoder.attention.q_proj`."""
    part, _, last = re.sub(r"\.(blocks\.\d+|experts\.\d+)", "", name).rpartition(".")
    return part if last in ("weight", "bias") else f"{part}.{last}"


@known_keywords
def swap_run(
    run: TrainedModel,
    out: str | PathLike[str],
    options: SwapOptions,
    given: Collection[str] = (),
    console: Console = SILENT,
) -> SwapReport:
    """Write a run with swapped parts to the run folder `out`; return a report.

    `given` are the names of the recipe's fields that were replaced when the run was opened, which
    recovery keeps. Where the run has no data, nothing is measured. Raises `InputError` where
    something is in `out` or another process writes there, for parts that do not exist or do not
    fit, and where data are missing that were named or that training needs.
    """
    if not (options.sets or options.layers):
        raise InputError(
            "nothing to change: give `sets`, such as `sets = norm=rmsnorm`, or `layers`"
        )
    out = path_of(out)
    with locked_empty(out):
        refuse_dual(run.model, "given other parts")
        check_float(run, "takes other parts")
        if options.distill and has_joint_loss(run.recipe.model.head):
            raise InputError(
                f"`distill`: a {kind_of(run.recipe.model.head)} head learns its outputs together, "
                "and those of a teacher are learnt one by one: leave it out"
            )
        if options.recover:  # training needs more than 16 bits
            run = moved_copy(run, dtype=torch.float32)
        recipe, layers = _swapped_recipe(run.recipe, options)
        config = config_with_folding(run.model, run.recipe.model, recipe.model)
        added = differences(recipe.model, config)
        recipe = replace(recipe, model=config)
        new = replace(run, recipe=recipe, model=_built(run, recipe))
        with long_work(console, "changing the parts"):
            transfer = transfer_weights(run.model, run.recipe.model, new.model, config, layers)
        _check_teacher(options, transfer)
        recovery = None
        if steps := options.recover:
            recovery = Recovery.of(run, new, steps, given, console, distill=options.distill)
        data, unmeasured = data_to_measure(run, options.split, given, needed=recovery is not None)
        if data is not None:
            device = resolve_device(new.recipe.train.device)
            run = moved_copy(run, device=device, dtype=next(run.model.parameters()).dtype)
            new.model.to(device)
        figures = measured(data, {"before": run.model, "after": new.model}, console)
        with atomic_directory(out, index="config.json") as partial:
            if recovery is not None:
                recovery.train(new.model, data, partial)
                new = replace(new, recipe=recovery.recipe)
                figures |= measured(data, {"recovered": new.model}, console)
            with long_work(console, "writing the model"):
                write_run(partial, new)
    return SwapReport(
        run=new.written_to(out),
        transfer=transfer,
        added=tuple(f"{name} = {_written(now)}" for name, (_, now) in added.items()),
        figures=figures,
        unmeasured=unmeasured,
    )


def _swapped_recipe(recipe: Recipe, options: SwapOptions) -> tuple[Recipe, Layers]:
    """The new recipe, and the old layer for each new layer."""
    old = layer_counts(recipe.model)
    new = changed(recipe, options.sets)
    if new.model.d_model != recipe.model.d_model:
        raise InputError(
            f"`sets` d_model = {new.model.d_model}: no weight of a model of width "
            f"{recipe.model.d_model} fits another width: leave it out, or train a new model"
        )
    first = next(iter(old))
    if not options.layers:
        counts = layer_counts(new.model)
        layers = {stack: evenly_spaced_layers(old[stack], n) for stack, n in counts.items()}
        return replace(new, model=_with_patterns_of(recipe.model, new.model, layers)), layers
    unknown = [str(i) for i in options.layers if not 0 <= i < old[first]]
    if unknown:
        raise InputError(
            f"`layers = {' '.join(unknown)}`: the model has layers 0 to {old[first] - 1}"
        )
    n = len(options.layers)
    if new.model.n_layers not in (recipe.model.n_layers, n):
        raise InputError(
            f"`layers` names {n} layers, and `sets` n_layers={new.model.n_layers}: give one of them"
        )
    new = with_depth(new, n)
    layers = {first: options.layers}
    for stack, count in layer_counts(new.model).items():
        together = _follows(new.model) and old[stack] == old[first]
        layers.setdefault(
            stack, options.layers if together else evenly_spaced_layers(old[stack], count)
        )
    return replace(new, model=_with_patterns_of(recipe.model, new.model, layers)), layers


def _with_patterns_of(old: ModelConfig, new: ModelConfig, layers: Layers) -> ModelConfig:
    """Return the new model with its old layers' patterns, unless it has its own."""
    patterns = {name: part for name, part in vars(old).items() if name.endswith("layer_pattern")}
    if any(vars(new)[name] != pattern for name, pattern in patterns.items()):
        return new
    taken = old.fields_of_layers(layers)
    return replace(new, **{name: part for name, part in taken.items() if name in patterns})


def _follows(model: ModelConfig) -> bool:
    """Whether the decoder's depth defaults to the encoder's."""
    return isinstance(model, EncoderDecoderConfig) and model.n_decoder_layers is None


def _built(run: TrainedModel, recipe: Recipe) -> Model:
    """The new model, before the weight transfer, in the dtype of the old one."""
    torch.manual_seed(recipe.train.seed)
    try:
        model = build_model(recipe, run.text, run.labels)
    except InputError:
        raise
    except ValueError as error:  # incompatible parts
        raise InputError(f"`sets`: {error}") from error
    return model.to(next(run.model.parameters()).dtype).eval()


def _check_teacher(options: SwapOptions, report: TransferReport) -> None:
    resized = [reason for reason in report.changed if reason.startswith("vocab_size")]
    if options.distill and resized:
        raise InputError(f"`distill` needs one vocabulary, and {resized[0]}: leave it out")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
