"""Pruning a run: heads, feed-forward rows and layers leave, and a smaller run is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from addnorm.atomic import atomic_directory
from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.models import Model
from addnorm.prune.pruned_model import Pruning, keep_weights, smaller_config
from addnorm.prune.selection import importance, kept_layers, kept_units
from addnorm.prune.units import Units, feedforward_rows, head_groups, stacks_of
from addnorm.runs.evaluation import EvaluationData, Split
from addnorm.runs.files.lock import check_empty, locked
from addnorm.runs.files.quantization_file import check_finite, check_float
from addnorm.runs.files.weights import build_model
from addnorm.runs.rewriting.decoding_speed import writing_speeds
from addnorm.runs.rewriting.recovery import RecoveryOptions, recovering, train_further
from addnorm.runs.rewriting.swap import measured
from addnorm.runs.run import Run
from addnorm.runs.saving import write_run, write_validation
from addnorm.training.loss import labels_loss_sum
from addnorm.training.precision import resolve_device


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """What to remove from a run, and how to recover from it."""

    heads: float | None = None
    """The share of the heads of every layer to remove."""
    feedforward: float | None = None
    """The share of the rows of every feed-forward to remove."""
    layers: tuple[str, ...] = ()
    """The layers to keep, as `every:2` or `0 2 4`."""
    calibrate: int = 512
    """The number of validation examples to measure importance on."""
    recover: int = 0
    """Train so many steps afterwards."""
    split: Split = "valid"
    """What to measure on."""


@dataclass(frozen=True, kw_only=True)
class PruneReport:
    """The models before and after, and what was measured of them, by name."""

    run: Run
    models: Mapping[str, Model]
    pruning: Pruning
    scores: Mapping[str, Mapping[str, float]]
    speeds: Mapping[str, Mapping[int, float]]
    """Tokens a second by the number of texts at once."""
    batch: Batch | None
    """A batch of the data, to count operations on."""
    unmeasured: str | None
    """Why there are no scores, if so."""


def prune_run(
    folder: Path, out: Path, options: PruneOptions, fields: Mapping[str, str], console: Console
) -> PruneReport:
    """Write the model of `folder`, pruned, to the run folder `out`; return what it costs.

    `fields` are those of the recipe to replace, as of the data. Raises `InputError`, writing
    nothing, where something is in `out`, for a part that cannot be pruned, for a share that removes
    nothing or all, and where importance or training need data that the run lacks.
    """
    _check(options, fields)
    check_empty(out)
    with locked(out):
        check_empty(out)
        run = Run.open(folder, fields)
        check_float(run, "is pruned")
        check_finite(run.model)
        run = run.to(dtype=torch.float32)
        units = _units(run.model, options)
        data, unmeasured = _data(run, options, fields)
        device = resolve_device(run.recipe.train.device)
        run.model.to(device)
        pruning = _pruning(run.model, units, options, data)
        run, new = replace(run, model=run.model.eval()), _smaller(run, pruning)
        new.model.to(device)
        models = {"before": run.model, "pruned": new.model}
        recipe, teacher = new.recipe, None
        if options.recover:
            how = RecoveryOptions(options.recover, False, fields)
            recipe, teacher = recovering(run, new.recipe, new.model, how, console)
        scores = measured(data, models, console)
        with atomic_directory(out, index="config.json") as partial:
            if options.recover:
                assert data is not None
                new = replace(new, recipe=recipe)
                train_further(new.model, recipe, data, partial, teacher, console)
                scores |= measured(data, {"recovered": new.model}, console)
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


def _check(options: PruneOptions, fields: Mapping[str, str]) -> None:
    """Validate the options before reading anything. Raises `InputError`."""
    if options.heads is None and options.feedforward is None and not options.layers:
        raise InputError("nothing to remove: give `heads`, `feedforward` or `layers`")
    for name, value, least in (
        ("recover", options.recover, 0),
        ("calibrate", options.calibrate, 1),
    ):
        if value < least:
            raise InputError(f"`{name} = {value}`: must be at least {least}")
    if of_model := [name for name in fields if name.startswith("model.")]:
        raise InputError(f"`{of_model[0]}`: parts of the model are changed by addnorm swap")


def _units(model: Model, options: PruneOptions) -> dict[str, list[Units]]:
    """The units of each kind that is to be pruned."""
    found: dict[str, list[Units]] = {}
    if options.heads is not None:
        found["heads"] = head_groups(model)
    if options.feedforward is not None:
        found["feedforward"] = feedforward_rows(model)
    return found


def _data(
    run: Run, options: PruneOptions, fields: Mapping[str, str]
) -> tuple[EvaluationData | None, str | None]:
    """The data of the run, or why there are none where none are needed."""
    ranked = options.heads is not None or options.feedforward is not None
    given = any(name.startswith("data.") for name in fields)
    needed = bool(ranked or options.recover or given)
    data, unmeasured = EvaluationData.if_any(run, options.split, needed=needed)
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
    """What stays, by the importance of heads and rows on the validation data.

    Raises `InputError` for a model without layers.
    """
    shares = {"heads": options.heads, "feedforward": options.feedforward}
    depths = {name: len(stack.blocks) for name, stack in stacks_of(model).items()}
    if not any(depths.values()):
        raise InputError("there is no layer to prune: model.n_layers = 0")
    layers = kept_layers(options.layers, depths) if options.layers else {}
    every = [one for some in units.values() for one in some]
    kept: dict[str, tuple[int, ...]] = {}
    if every:
        assert data is not None
        loss = partial(labels_loss_sum, model.head)
        found = importance(model, every, calibration_batches(data, options.calibrate), loss)
        for option, some in units.items():
            kept |= kept_units(some, found, shares[option] or 0.0, option)
    return Pruning(
        heads=options.heads,
        feedforward=options.feedforward,
        units=kept,
        of={one.path: one.n for one in every},
        layers=layers,
    )


def calibration_batches(data: EvaluationData, n: int) -> list[Batch]:
    """Validation batches that together have at least `n` examples, or all there are."""
    assert data.loaders.valid is not None
    chosen: list[Batch] = []
    for batch in data.loaders.valid.batches():
        chosen.append(batch)
        if sum(len(one.indices) for one in chosen) >= n:
            break
    return chosen


def _smaller(run: Run, pruning: Pruning) -> Run:
    """The run with the smaller model."""
    recipe = replace(run.recipe, model=smaller_config(run.recipe.model, pruning))
    new = build_model(recipe, run.text, run.labels).to(next(run.model.parameters()).dtype)
    keep_weights(run.model, new, pruning)
    return replace(run, recipe=recipe, model=new.eval())
