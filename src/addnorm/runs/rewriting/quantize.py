"""Quantising a run: calibrate on its data, measure before and after, and write a folder."""

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from os import PathLike
from typing import Any

import torch
from rich.console import Console

from addnorm.arguments import known_keywords
from addnorm.atomic import atomic_directory
from addnorm.convert.core.readback import model_logits, sample_inputs
from addnorm.data.batches.batch import Batch, Loader
from addnorm.errors import InputError, path_of
from addnorm.long_work import long_work
from addnorm.models import Model, refuse_dual
from addnorm.models.weights import n_bytes, weights_of
from addnorm.quantize import (
    DynamicConfig,
    Int4Config,
    Int8Config,
    QuantizationConfig,
    StaticConfig,
    WeightsOnlyConfig,
    is_calibrated,
    quantize,
)
from addnorm.quantize.quantizable_layers import (
    check_replaceable,
    check_some_left,
    includable,
    names_matching,
    names_to_include,
    slots_of,
    with_tied,
)
from addnorm.runs.evaluation import EvaluationData, write_validation
from addnorm.runs.files.lock import locked_empty
from addnorm.runs.files.quantization_file import Quantization, check_finite, check_float
from addnorm.runs.options import QuantizeOptions
from addnorm.runs.rewriting.measuring import (
    SILENT,
    data_to_measure,
    writing_speeds,
)
from addnorm.runs.rewriting.swap import part_of
from addnorm.runs.saving import write_run
from addnorm.runs.trained_model import TrainedModel, moved_copy
from addnorm.training.loss import labels_loss_sum

FLOAT = "float32"
"""The name of the model before, in reports."""

SENSITIVITY_EXAMPLES = 16
"""How many of the calibration's examples the layers are compared on."""

SWEEP: dict[str, QuantizationConfig] = {
    "int8 weights only": Int8Config(activations=WeightsOnlyConfig()),
    "int8 dynamic": Int8Config(),
    "int8 dynamic, smoothed": Int8Config(smoothing=0.5),
    "int8 static, minmax": Int8Config(activations=StaticConfig()),
    "int8 static, percentile": Int8Config(activations=StaticConfig(range="percentile")),
    "int8 static, mse": Int8Config(activations=StaticConfig(range="mse")),
    "int8 static, mse, smoothed": Int8Config(activations=StaticConfig(range="mse"), smoothing=0.5),
    "int4 nearest": Int4Config(),
    "int4 nearest, dynamic": Int4Config(activations=DynamicConfig()),
    "int4 GPTQ": Int4Config(rounding="gptq"),
    "int4 nearest, groups of 128": Int4Config(group_size=128),
    "int4 GPTQ, groups of 128": Int4Config(rounding="gptq", group_size=128),
}
"""The schemes of a sweep."""

if find_spec("torchao") is not None:
    SWEEP["int4 HQQ"] = Int4Config(rounding="hqq")

USUAL = QuantizeOptions()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model's size, scores and speed."""

    n_bytes: int
    scores: Mapping[str, float]
    speeds: Mapping[int, float]
    """Tokens (of an encoder, texts) a second by batch size."""


@dataclass(frozen=True, kw_only=True)
class QuantizationReport:
    """The sizes, scores and speeds of a model before and after quantisation, by name."""

    models: Mapping[str, Measured]
    unquantized: tuple[str, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    """The number of weights that are not quantised by part, the largest first."""
    includable: tuple[str, ...] = ()
    """The layers among them that would be quantised if they were named."""
    sensitivity: Mapping[str, float] | None = None
    """How much quantising each layer alone raises the loss, the worst first, if it was measured."""
    unmeasured: str | None = None
    """Why no scores were measured; None if they were."""


@known_keywords
def quantize_run(
    run: TrainedModel,
    out: str | PathLike[str],
    scheme: QuantizationConfig,
    options: QuantizeOptions = USUAL,
    given: Collection[str] = (),
    console: Console = SILENT,
) -> QuantizationReport:
    """Write a quantised run to the run folder `out`; return its costs.

    `given` are the names of the recipe's fields that were replaced when the run was opened. Raises
    `InputError`, writing nothing, where something is in `out`, for a model that is quantised
    already or has a part that cannot be, and where the scheme is calibrated and the run has no
    data.
    """
    out = path_of(out)
    with locked_empty(out):
        run = _in_float32(run)
        needed = _needs_examples(scheme, options)
        data, unmeasured = data_to_measure(run, options.split, given, needed=needed)
        examples = calibration_examples(data, scheme, options)
        layers = Layers.of(run.model, options)
        sensitivity = None
        if options.keep_worst:
            with long_work(console, "measuring layer by layer"):
                sensitivity = sensitivities(run.model, scheme, examples, layers)
            if options.keep_worst >= len(sensitivity):
                raise InputError(
                    f"`keep_worst = {options.keep_worst}` keeps all {len(sensitivity)} layers that "
                    f"would be quantised: give {len(sensitivity) - 1} at most"
                )
            worst = list(sensitivity)[: options.keep_worst]
            layers = Layers.of(run.model, options, worst)
        with long_work(console, "quantising"):
            model = _quantized(run.model, scheme, examples, layers)
            check_runs(run, model, layers)
        models = {FLOAT: run.model, scheme.kind: model}
        figures = measure(run, models, data, console)
        facts = Quantization(
            scheme=scheme,
            kept=layers.unquantized,
            included=layers.included,
            examples=len(examples) if is_calibrated(scheme) else 0,
            source=run.name,
        )
        new = replace(run, model=model.eval(), quantization=facts)
        with atomic_directory(out, index="config.json") as partial:
            write_run(partial, new)
            if options.split == "valid":
                write_validation(partial, run.recipe, figures[scheme.kind].scores)
    return QuantizationReport(
        models=figures,
        unquantized=layers.unquantized,
        left=unquantized_weights(model),
        includable=tuple(includable(model)),
        sensitivity=sensitivity,
        unmeasured=unmeasured,
    )


@known_keywords
def sweep_run(
    run: TrainedModel,
    schemes: Mapping[str, QuantizationConfig] = SWEEP,
    options: QuantizeOptions = USUAL,
    given: Collection[str] = (),
    console: Console = SILENT,
) -> QuantizationReport:
    """Measure a run under each of the `schemes`, writing nothing.

    Raises `InputError` as `quantize_run` does.
    """
    run = _in_float32(run)
    needed = any(_needs_examples(scheme, options) for scheme in schemes.values())
    data, unmeasured = data_to_measure(run, options.split, given, needed=needed)
    layers = Layers.of(run.model, options)
    models: dict[str, Model] = {FLOAT: run.model}
    for name, scheme in schemes.items():
        examples = calibration_examples(data, scheme, options)
        with long_work(console, f"quantising: {name}"):
            models[name] = _quantized(run.model, scheme, examples, layers)
            check_runs(run, models[name], layers)
    return QuantizationReport(
        models=measure(run, models, data, console),
        unquantized=layers.unquantized,
        unmeasured=unmeasured,
    )


@dataclass(frozen=True)
class Layers:
    """The names of the layers to leave unquantised, and of the custom layers to quantise."""

    unquantized: tuple[str, ...] = ()
    included: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, options: QuantizeOptions, worst: Sequence[str] = ()) -> "Layers":
        """Return the layers that the options name, and leave the `worst` unquantised too.

        Raises `InputError` for a pattern that matches none, and if no layer is left to quantise.
        """
        included = names_to_include(model, options.include)
        unquantized = names_matching(model, (*options.keep, *worst), included)
        check_some_left(model, unquantized, included)
        return cls(tuple(sorted(unquantized)), included)


PLAIN = Layers()


def _quantized(
    model: Model, scheme: QuantizationConfig, examples: Sequence[Batch], layers: Layers
) -> Model:
    batches = [batch.inputs for batch in examples] if is_calibrated(scheme) else []
    new = copy.deepcopy(model)
    return quantize(new, scheme, batches, keep=layers.unquantized, include=layers.included)


def check_runs(run: TrainedModel, model: Model, layers: Layers) -> None:
    """Raise `InputError` if the model cannot run with an included layer quantised."""
    if not layers.included:
        return
    try:
        with torch.inference_mode():
            model_logits(model, sample_inputs(model))
    except AttributeError as error:
        raise InputError(
            f"{run.name}: with {', '.join(layers.included)} quantised the model does not run "
            f"({error}): a module that reads a layer's weight itself cannot have it in few bits: "
            "include other layers"
        ) from error


def _in_float32(run: TrainedModel) -> TrainedModel:
    """Return the run in float32, ready to quantise.

    Raises `InputError` if it is quantised already, or cannot be.
    """
    refuse_dual(run.model, "quantised")
    check_float(run, "is quantised again")
    check_finite(run.model)
    check_replaceable(run.model)
    return moved_copy(run, dtype=torch.float32)


# Data.


def _needs_examples(scheme: QuantizationConfig, options: QuantizeOptions) -> bool:
    """Whether data are needed: to calibrate on, or to find the worst layers."""
    return is_calibrated(scheme) or options.keep_worst > 0


def calibration_examples(
    data: EvaluationData | None, scheme: QuantizationConfig, options: QuantizeOptions = USUAL
) -> list[Batch]:
    """The first training examples in the run's order, one a batch, so without padding."""
    if data is None or not _needs_examples(scheme, options):
        return []
    return list(islice(_one_by_one(data.loaders.train), options.calibrate))


def _one_by_one(loader: Loader[Any]) -> Iterator[Batch]:
    for items in loader.plan(0):
        for item in items:
            yield loader.build([item])


# Measuring.


def measure(
    run: TrainedModel, models: Mapping[str, Model], data: EvaluationData | None, console: Console
) -> dict[str, Measured]:
    """The size, scores and speed of each model."""
    scores: dict[str, Mapping[str, float]] = {}
    if data is not None and data.evaluator is not None:
        for name, model in models.items():
            with long_work(console, f"measuring: {name}"):
                scores[name] = data.evaluator.evaluate(model).scores
    with long_work(console, "timing"):
        speeds = writing_speeds(run, models)
    return {
        name: Measured(
            n_bytes=n_bytes(weights_of(model).values()),
            scores=scores.get(name, {}),
            speeds=speeds[name],
        )
        for name, model in models.items()
    }


def unquantized_weights(model: Model) -> dict[str, int]:
    """The number of weights that are not quantised by part, the largest first."""
    sizes = Counter[str]()
    for name, weight in model.named_parameters():
        sizes[part_of(name.partition(".biases.")[0])] += weight.numel()
    return dict(sizes.most_common())


def sensitivities(
    model: Model, scheme: QuantizationConfig, examples: Sequence[Batch], layers: Layers = PLAIN
) -> dict[str, float]:
    """The increase of the loss (nats a target) if one layer alone is quantised, worst first."""
    few = examples[:SENSITIVITY_EXAMPLES]
    rounded = _quantized(model, scheme, examples, layers)
    before = _loss(model, few)
    rises: dict[str, float] = {}
    done = set(layers.unquantized)
    for name in (slot.name for slot in slots_of(model, layers.included)):
        if name in done:
            continue
        tied = with_tied(model, {name}, layers.included)
        done |= tied
        plain = {module: model.get_submodule(module) for module in tied}
        for module in plain:
            model.set_submodule(module, rounded.get_submodule(module))
        rises[name] = _loss(model, few) - before
        for module, before_rounding in plain.items():
            model.set_submodule(module, before_rounding)
    return dict(sorted(rises.items(), key=lambda item: -item[1]))


@torch.inference_mode()
def _loss(model: Model, examples: Sequence[Batch]) -> float:
    """The mean loss per target, in nats."""
    model.eval()
    total = sum(
        float(labels_loss_sum(model.head, model(**batch.inputs), batch.targets))
        for batch in examples
    )
    return total / max(sum(batch.n_tokens for batch in examples), 1)
