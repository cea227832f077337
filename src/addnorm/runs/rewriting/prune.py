"""Pruning a run: removes heads, feed-forward rows and layers, and writes a smaller run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike

import torch
from rich.console import Console

from addnorm.arguments import known_keywords
from addnorm.atomic import atomic_directory
from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError, path_of
from addnorm.long_work import long_work
from addnorm.models import Model, refuse_dual
from addnorm.nn.blocks import check_unshared
from addnorm.prune.pruned_model import Pruning, keep_weights, smaller_config
from addnorm.prune.selection import importance, kept_layers, kept_units, n_kept
from addnorm.prune.units import Units, feedforward_rows, head_groups, stacks_of
from addnorm.runs.evaluation import EvaluationData, write_validation
from addnorm.runs.files.lock import locked_empty
from addnorm.runs.files.quantization_file import check_finite, check_float
from addnorm.runs.files.weights import build_model
from addnorm.runs.options import PruneOptions
from addnorm.runs.rewriting.measuring import (
    SILENT,
    data_to_measure,
    measured,
    writing_speeds,
)
from addnorm.runs.rewriting.recovery import Recovery
from addnorm.runs.saving import write_run
from addnorm.runs.trained_model import TrainedModel, moved_copy
from addnorm.training.loss import labels_loss_sum
from addnorm.training.precision import resolve_device


@dataclass(frozen=True, kw_only=True)
class PruneReport:
    """The models before and after, with their scores and speeds, by name."""

    run: TrainedModel
    models: Mapping[str, Model]
    pruning: Pruning
    scores: Mapping[str, Mapping[str, float]]
    speeds: Mapping[str, Mapping[int, float]]
    """Tokens a second by batch size."""
    batch: Batch | None
    """A batch of the data, to count operations on."""
    unmeasured: str | None
    """Why there are no scores; None if there are."""


@known_keywords
def prune_run(
    run: TrainedModel,
    out: str | PathLike[str],
    options: PruneOptions,
    given: Collection[str] = (),
    console: Console = SILENT,
) -> PruneReport:
    """Write a pruned run to the run folder `out`; return its costs.

    `given` are the names of the recipe's fields that were replaced when the run was opened, which
    recovery keeps. Raises `InputError`, writing nothing, where something is in `out`, for a part
    that cannot be pruned, for a share that removes nothing or all, and where importance or training
    need data that the run lacks.
    """
    if options.heads is None and options.feedforward is None and not options.layers:
        raise InputError("nothing to remove: give `heads`, `feedforward` or `layers`")
    out = path_of(out)
    with locked_empty(out):
        refuse_dual(run.model, "pruned")
        check_float(run, "is pruned")
        check_finite(run.model)
        check_unshared(run.model, "pruning")
        device = resolve_device(run.recipe.train.device)
        run = moved_copy(run, device=device, dtype=torch.float32)
        units = _units(run.model, options)
        data, unmeasured = _data(run, options, given)
        with long_work(console, "choosing what to remove"):
            pruning = _pruning(run.model, units, options, data)
            new = _pruned(run, pruning)
        new.model.to(device)
        models = {"before": run.model, "pruned": new.model}
        recovery = None
        if options.recover:
            recovery = Recovery.of(run, new, options.recover, given, console)
        scores = measured(data, models, console)
        with atomic_directory(out, index="config.json") as partial:
            if recovery is not None:
                recovery.train(new.model, data, partial)
                new = replace(new, recipe=recovery.recipe)
                scores |= measured(data, {"recovered": new.model}, console)
            with long_work(console, "timing"):
                speeds = writing_speeds(run, models)
            write_run(partial, new)
            if options.split == "valid" and scores:
                write_validation(partial, new.recipe, [*scores.values()][-1], options.recover)
    return PruneReport(
        run=new.written_to(out),
        models=models,
        pruning=pruning,
        scores=scores,
        speeds=speeds,
        batch=None if data is None else next(iter(data.loaders.train.batches())).to(device),
        unmeasured=unmeasured,
    )


def _units(model: Model, options: PruneOptions) -> dict[str, list[Units]]:
    """The prunable units of each kind that is to be pruned.

    Raises `InputError`, before anything is measured, for a share that removes none or all of them.
    """
    units: dict[str, list[Units]] = {}
    if options.heads is not None:
        units["heads"] = head_groups(model)
    if options.feedforward is not None:
        units["feedforward"] = feedforward_rows(model)
    for kind, of_kind in units.items():
        for sublayer in of_kind:
            n_kept(sublayer.n, getattr(options, kind), kind, sublayer.path)
    return units


def _data(
    run: TrainedModel, options: PruneOptions, given: Collection[str]
) -> tuple[EvaluationData | None, str | None]:
    """The data of the run, or the reason why there are none if they are not needed."""
    ranked = options.heads is not None or options.feedforward is not None
    needed = ranked or options.recover > 0
    data, unmeasured = data_to_measure(run, options.split, given, needed=needed)
    if ranked and data is not None and data.loaders.valid is None:
        raise InputError(
            "importance is measured on validation data, and data.valid is not given: give it, or "
            "remove layers alone"
        )
    return data, unmeasured


def _pruning(
    model: Model,
    units: Mapping[str, list[Units]],
    options: PruneOptions,
    data: EvaluationData | None,
) -> Pruning:
    """Return the heads, rows and layers to keep, by their importance on the validation data.

    Raises `InputError` for a model without layers.
    """
    shares = {"heads": options.heads, "feedforward": options.feedforward}
    depths = {name: len(stack.blocks) for name, stack in stacks_of(model).items()}
    if not any(depths.values()):
        raise InputError("there is no layer to prune: model.n_layers = 0")
    layers = kept_layers(options.layers, depths) if options.layers else {}
    every = [unit for of_kind in units.values() for unit in of_kind]
    indices: dict[str, tuple[int, ...]] = {}
    if every:
        assert data is not None
        loss = partial(labels_loss_sum, model.head)
        ranks = importance(model, every, calibration_batches(data, options.calibrate), loss)
        for kind, of_kind in units.items():
            indices |= kept_units(of_kind, ranks, shares[kind] or 0.0, kind)
    return Pruning(
        heads=options.heads,
        feedforward=options.feedforward,
        units=indices,
        of={unit.path: unit.n for unit in every},
        layers=layers,
    )


def calibration_batches(data: EvaluationData, n: int) -> list[Batch]:
    """Validation batches with at least `n` examples in all, or all batches."""
    assert data.loaders.valid is not None
    chosen: list[Batch] = []
    for batch in data.loaders.valid.batches():
        chosen.append(batch)
        if sum(len(batch.indices) for batch in chosen) >= n:
            break
    return chosen


def _pruned(run: TrainedModel, pruning: Pruning) -> TrainedModel:
    """The run with the pruned model."""
    recipe = replace(run.recipe, model=smaller_config(run.recipe.model, pruning))
    new = build_model(recipe, run.text, run.labels)
    keep_weights(run.model, new, pruning)
    return replace(run, recipe=recipe, model=new.eval())
