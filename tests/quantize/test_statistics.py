"""What goes into layers: ranges and products of features as plain float64 finds them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.quantize.layers import StaticConfig
from addnorm.quantize.quantizable_layers import products_of
from addnorm.quantize.statistics import (
    BINS,
    InputStatistics,
    count_sizes,
    observe,
    range_of,
    smoothing_of,
)


@pytest.fixture
def model() -> DecoderModel:
    config = DecoderConfig(
        d_model=16,
        n_layers=2,
        attention=AttentionConfig(n_heads=2),
        head=TokenHeadConfig(scale="sqrt"),
        exits=(1,),
    )
    return config.build(11).eval()


BATCHES = [{"tokens": torch.arange(n)[None] % 11} for n in (3, 5, 1)]


def inputs_of(model: DecoderModel) -> dict[str, Tensor]:
    """What every product multiplies, collected whole in float64, exits included."""
    recorded: dict[str, list[Tensor]] = {}
    handles = []
    for name, layer in products_of(model).items():

        def keep(module: Any, args: Any, name: str = name) -> None:
            x = args[0] * getattr(module, "scale", 1.0)
            recorded.setdefault(name, []).append(x.double().flatten(0, -2))

        handles.append(layer.register_forward_pre_hook(keep))
    with torch.no_grad():
        for batch in BATCHES:
            list(model.exit_logits(**batch))
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in recorded.items()}


def test_statistics_cover_all_inputs(model: DecoderModel) -> None:
    statistics = observe(model, products_of(model), BATCHES, grams=True)
    inputs = inputs_of(model)
    assert statistics.keys() == inputs.keys() == products_of(model).keys()
    assert any(name.startswith("exits.") for name in statistics)
    for name, x in inputs.items():
        torch.testing.assert_close(statistics[name].largest, x.abs().amax(0))
        gram = statistics[name].gram
        assert gram is not None
        torch.testing.assert_close(gram, x.T @ x)


@pytest.mark.parametrize("smoothed", [False, True])
def test_ranges_cover_all_inputs(model: DecoderModel, smoothed: bool) -> None:
    layers = products_of(model)
    statistics = observe(model, layers, BATCHES)
    by = (
        {n: torch.rand(len(of_layer.largest)) + 0.5 for n, of_layer in statistics.items()}
        if smoothed
        else {}
    )
    count_sizes(model, layers, BATCHES, statistics, by)
    for name, x in inputs_of(model).items():
        sizes = (x / by[name].double() if smoothed else x).abs().flatten()
        of_layer, top = statistics[name], float(sizes.max())
        assert of_layer.counts.sum() == sizes.numel()
        assert range_of(StaticConfig(), of_layer) == pytest.approx(top)
        largest = range_of(StaticConfig(range="percentile", percentile=90.0), of_layer)
        share = (sizes <= largest).double().mean()
        assert share >= 0.9
        assert (sizes <= largest - top / BINS).double().mean() < 0.9


def test_the_range_has_the_least_squared_error() -> None:
    """Many small numbers and few outliers: cutting these is better, as plain search finds."""
    sizes = torch.cat([torch.rand(100_000, dtype=torch.float64), torch.tensor([4.0])])
    counts = (sizes * (BINS / 4.0)).long().clamp(max=BINS - 1).bincount(minlength=BINS)
    best = range_of(
        StaticConfig(range="mse"),
        InputStatistics(torch.tensor([4.0]), counts=counts, top=4.0),
    )

    def error(end: float) -> float:
        step = end / 127
        return float((((sizes / step).round().clamp(max=127) * step - sizes) ** 2).sum())

    assert best < 4.0
    assert error(best) <= min(error(4.0 * k / 100) for k in range(10, 101)) * 1.02


def test_inputs_of_zeros_have_the_range_one() -> None:
    for kind in ("minmax", "percentile", "mse"):
        assert range_of(StaticConfig(range=kind), InputStatistics(torch.zeros(3))) == 1.0


def test_smoothing_equals_the_formula_of_the_paper() -> None:
    weight = torch.tensor([[2.0, -0.5, 1.0], [-4.0, 0.25, 1.0]])
    largest = torch.tensor([16.0, 2.0, 0.0], dtype=torch.float64)
    smoothing = smoothing_of(weight, largest, 0.75)
    assert smoothing.tolist() == pytest.approx([16**0.75 / 4**0.25, 2**0.75 / 0.5**0.25, 1.0])
