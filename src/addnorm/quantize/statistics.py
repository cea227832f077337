"""What goes into the layers of a model on real data, and what follows from it for quantisation."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.models import DecoderModel, EncoderModel, Model
from addnorm.nn.heads import TokenHead
from addnorm.quantize.activations import StaticConfig
from addnorm.quantize.int8 import LARGEST

BINS = 4096
"""The bins between zero and the largest size of an input."""

Inputs = Mapping[str, Tensor]
"""The keyword arguments of a model's forward."""


@dataclass
class InputStatistics:
    """What a layer's input was like over all tokens."""

    largest: Float[Tensor, " d_in"]
    """The largest size of each feature, `max_t |x_tj|`."""
    gram: Float[Tensor, "d_in d_in"] | None = None
    """`Σ_t x_t x_tᵀ` in float64, where it was asked for."""
    counts: Int[Tensor, " bins"] = field(default_factory=lambda: torch.zeros(BINS).long())
    """How many numbers had a size in each bin between zero and `top`; see `count_sizes`."""
    top: float = 0.0
    """The upper end of the last bin."""


def observe(
    model: Model,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Inputs],
    *,
    grams: bool = False,
) -> dict[str, InputStatistics]:
    """Run the model on batches; return the statistics of those layers that had any input.

    Padding counts as input: give batches without. `grams` also sums the products of features, for
    GPTQ.
    """
    found: dict[str, InputStatistics] = {}

    def note(name: str, x: Float[Tensor, "rows d_in"]) -> None:
        largest = x.abs().amax(0).double()
        gram = x.double().T @ x.double() if grams else None
        if (so_far := found.get(name)) is None:
            found[name] = InputStatistics(largest, gram)
            return
        so_far.largest = torch.maximum(so_far.largest, largest)
        if so_far.gram is not None and gram is not None:
            so_far.gram += gram

    _run(model, layers, batches, note)
    return found


def count_sizes(
    model: Model,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Inputs],
    statistics: Mapping[str, InputStatistics],
    smoothing: Mapping[str, Tensor],
) -> None:
    """Run the model again to count the sizes of each layer's inputs, after their smoothing."""
    for name, one in statistics.items():
        one.top = float((one.largest / smoothing[name] if name in smoothing else one.largest).max())

    def note(name: str, x: Float[Tensor, "rows d_in"]) -> None:
        one = statistics[name]
        sizes = (x / smoothing[name] if name in smoothing else x).abs().flatten()
        bins = (sizes.double() * (BINS / (one.top or 1.0))).long().clamp(max=BINS - 1)
        one.counts += bins.bincount(minlength=BINS)

    _run(model, layers, batches, note)


def range_of(config: StaticConfig, statistics: InputStatistics) -> float:
    """The largest input that int8 is to hold, by the rule of `config`; one if all were zero."""
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
    """The range with the least squared rounding error of the sizes counted, each at its bin."""
    sizes = (torch.arange(BINS, dtype=torch.float64) + 0.5) * (statistics.top / BINS)
    best, least = statistics.top, float("inf")
    for percent in range(10, 101):
        end = statistics.top * percent / 100
        scale = end / LARGEST
        back = (sizes / scale).round().clamp(max=LARGEST) * scale
        error = float((statistics.counts * (back - sizes) ** 2).sum())
        if error <= least:
            best, least = end, error
    return best


def smoothing_of(
    weight: Float[Tensor, "d_out d_in"], largest: Float[Tensor, " d_in"], strength: float
) -> Float[Tensor, " d_in"]:
    """`m_j = max |x_j|^α / max |W_j|^(1 - α)`: moves outliers of inputs into weights.

    SmoothQuant (Xiao et al. 2022, eq. 4); one where either is zero throughout.
    """
    columns = weight.detach().abs().amax(0).double()
    moved = largest**strength / columns ** (1 - strength)
    usable = (largest > 0) & (columns > 0)
    return torch.where(usable, moved, 1.0).float()


def _run(
    model: Model, layers: Mapping[str, nn.Module], batches: Iterable[Inputs], note: Any
) -> None:
    model.eval()
    with torch.inference_mode(), _watching(layers, note):
        for inputs in batches:
            if isinstance(model, EncoderModel | DecoderModel) and model.exits:
                for _ in model.exit_logits(**inputs):
                    pass
            else:
                model(**inputs)  # pyright: ignore[reportArgumentType]


@contextmanager
def _watching(layers: Mapping[str, nn.Module], note: Any) -> Generator[None]:
    """Call `note(name, x)` with the rows that each layer multiplies by its weight."""

    def watch(name: str, layer: nn.Module) -> Any:
        def before(_: nn.Module, inputs: Sequence[Any]) -> None:
            x: Tensor = inputs[0]
            if isinstance(layer, TokenHead):
                x = x if layer.transform is None else layer.transform(x)
                x = x * layer.scale
            if x.numel():
                note(name, x.flatten(0, -2))

        return layer.register_forward_pre_hook(before)

    handles = [watch(name, layer) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
