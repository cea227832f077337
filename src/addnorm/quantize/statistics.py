"""Calibration: statistics of layer inputs on real data, and the ranges derived from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.nn.heads import TokenHead
from addnorm.quantize.int8 import LARGEST
from addnorm.quantize.layers import StaticConfig

BINS = 4096
"""The bins between zero and the largest size of an input."""

Inputs = Mapping[str, Tensor]
"""The keyword arguments of a model's forward."""


@dataclass
class InputStatistics:
    """Statistics of a layer's input over all tokens."""

    largest: Float[Tensor, " d_in"]
    """The largest size of each feature, `max_t |x_tj|`."""
    gram: Float[Tensor, "d_in d_in"] | None = None
    """`Σ_t x_t x_tᵀ` in float64, if requested."""
    counts: Int[Tensor, " bins"] = field(default_factory=lambda: torch.zeros(BINS).long())
    """The number of sizes in each bin between zero and `top`; see `count_sizes`."""
    top: float = 0.0
    """The upper end of the last bin."""


def observe(
    model: Model,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Inputs],
    *,
    grams: bool = False,
) -> dict[str, InputStatistics]:
    """Run the model on batches; return the statistics of the layers that received inputs.

    Padding counts as input, so the batches should have none. `grams` also sums the products of
    features, for GPTQ.
    """
    statistics: dict[str, InputStatistics] = {}

    def record(name: str, x: Float[Tensor, "rows d_in"]) -> None:
        largest = x.abs().amax(0).double()
        gram = x.double().T @ x.double() if grams else None
        if (so_far := statistics.get(name)) is None:
            statistics[name] = InputStatistics(largest, gram)
            return
        so_far.largest = torch.maximum(so_far.largest, largest)
        if so_far.gram is not None and gram is not None:
            so_far.gram += gram

    _run(model, layers, batches, record)
    return statistics


def count_sizes(
    model: Model,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Inputs],
    statistics: Mapping[str, InputStatistics],
    smoothing: Mapping[str, Tensor],
) -> None:
    """Run the model again to count the magnitudes of each layer's smoothed inputs."""

    def smoothed(name: str, x: Tensor) -> Tensor:
        return x / smoothing[name] if name in smoothing else x

    def count(name: str, x: Float[Tensor, "rows d_in"]) -> None:
        of_layer = statistics[name]
        sizes = smoothed(name, x).abs().flatten()
        bins = (sizes.double() * (BINS / (of_layer.top or 1.0))).long().clamp(max=BINS - 1)
        of_layer.counts += bins.bincount(minlength=BINS)

    for name, of_layer in statistics.items():
        of_layer.top = float(smoothed(name, of_layer.largest).max())
    _run(model, layers, batches, count)


def range_of(config: StaticConfig, statistics: InputStatistics) -> float:
    """The largest magnitude of an int8 input, by the rule of `config`; 1 if all are zero."""
    top = statistics.top
    if top == 0.0:
        return 1.0
    match config.range:
        case "minmax":
            return top
        case "percentile":
            share = statistics.counts.cumsum(0).double() / statistics.counts.sum()
            edge = int((share < config.percentile / 100).sum()) + 1
            return top * min(edge, BINS) / BINS
        case "mse":
            return _least_error(statistics)


def _least_error(statistics: InputStatistics) -> float:
    """The range with the least squared rounding error over the counts; the largest of equal ones.

    Each size counts as the middle of its bin; tried are all percentages of the largest from 10.
    """
    sizes = (torch.arange(BINS, dtype=torch.float64) + 0.5) * (statistics.top / BINS)

    def error(largest: float) -> float:
        scale = largest / LARGEST
        rounded = (sizes / scale).round().clamp(max=LARGEST) * scale
        return float((statistics.counts * (rounded - sizes) ** 2).sum())

    return min((statistics.top * percent / 100 for percent in range(100, 9, -1)), key=error)


def smoothing_of(
    weight: Float[Tensor, "d_out d_in"], largest: Float[Tensor, " d_in"], strength: float
) -> Float[Tensor, " d_in"]:
    """`m_j = max |x_j|^α / max |W_j|^(1 - α)`: moves outliers from inputs into weights.

    SmoothQuant (Xiao et al. 2022, eq. 4); 1 for a feature whose inputs or weights are all zero.
    """
    columns = weight.detach().abs().amax(0).double()
    moved = largest**strength / columns ** (1 - strength)
    usable = (largest > 0) & (columns > 0)
    return torch.where(usable, moved, 1.0).float()


def _run(
    model: Model,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Inputs],
    record: Callable[[str, Tensor], None],
) -> None:
    """Run the model, and call `record(name, x)` with the rows that each layer multiplies."""
    model.eval()
    with torch.inference_mode(), ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(_before(layer, partial(record, name)))
        for inputs in batches:
            if isinstance(model, EncoderModel | DecoderModel) and model.exits:
                for _ in model.exit_logits(**inputs):
                    pass
            else:
                model(**inputs)  # pyright: ignore[reportArgumentType]


def _before(layer: nn.Module, record: Callable[[Tensor], None]) -> RemovableHandle:
    """Whenever the layer runs, call `record` with the rows that it multiplies by its weight."""

    def hook(_: nn.Module, inputs: Sequence[Any]) -> None:
        x: Tensor = inputs[0]
        if isinstance(layer, TokenHead):
            x = x if layer.transform is None else layer.transform(x)
            x = x * layer.scale
        if x.numel():
            record(x.flatten(0, -2))

    return layer.register_forward_pre_hook(hook)
