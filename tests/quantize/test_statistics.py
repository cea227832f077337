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
    seen: dict[str, list[Tensor]] = {}
    handles = []
    for name, layer in products_of(model).items():

        def keep(module: Any, args: Any, name: str = name) -> None:
            x = args[0] * getattr(module, "scale", 1.0)
            seen.setdefault(name, []).append(x.double().flatten(0, -2))

        handles.append(layer.register_forward_pre_hook(keep))
    with torch.no_grad():
        for batch in BATCHES:
            list(model.exit_logits(**batch))
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in seen.items()}


def test_statistics_are_those_of_all_inputs(model: DecoderModel) -> None:
    found = observe(model, products_of(model), BATCHES, grams=True)
    wanted = inputs_of(model)
    assert found.keys() == wanted.keys() == products_of(model).keys()
    assert any(name.startswith("exits.") for name in found)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name].largest, x.abs().amax(0))
        gram = found[name].gram
        assert gram is not None
        torch.testing.assert_close(gram, x.T @ x)


@pytest.mark.parametrize("smoothed", [False, True])
def test_ranges_are_those_of_all_inputs(model: DecoderModel, smoothed: bool) -> None:
    layers = products_of(model)
    found = observe(model, layers, BATCHES)
    by = {n: torch.rand(len(one.largest)) + 0.5 for n, one in found.items()} if smoothed else {}
    count_sizes(model, layers, BATCHES, found, by)
    for name, x in inputs_of(model).items():
        sizes = (x / by[name].double() if smoothed else x).abs().flatten()
        one, top = found[name], float(sizes.max())
        assert one.counts.sum() == sizes.numel()
        assert range_of(StaticConfig(), one) == pytest.approx(top)
        held = range_of(StaticConfig(range="percentile", percentile=90.0), one)
        share = (sizes <= held).double().mean()
        assert share >= 0.9
        assert (sizes <= held - top / BINS).double().mean() < 0.9


def test_the_least_squared_error_by_search() -> None:
    """Many small numbers and few outliers: cutting these is better, as plain search finds."""
    sizes = torch.cat([torch.rand(100_000, dtype=torch.float64), torch.tensor([4.0])])
    counts = (sizes * (BINS / 4.0)).long().clamp(max=BINS - 1).bincount(minlength=BINS)
    found = range_of(
        StaticConfig(range="mse"),
        InputStatistics(torch.tensor([4.0]), counts=counts, top=4.0),
    )

    def error(end: float) -> float:
        step = end / 127
        return float((((sizes / step).round().clamp(max=127) * step - sizes) ** 2).sum())

    assert found < 4.0
    assert error(found) <= min(error(4.0 * k / 100) for k in range(10, 101)) * 1.02


def test_no_input_but_zeros_has_a_range() -> None:
    for kind in ("minmax", "percentile", "mse"):
        assert range_of(StaticConfig(range=kind), InputStatistics(torch.zeros(3))) == 1.0


def test_smoothing_is_that_of_the_paper() -> None:
    weight = torch.tensor([[2.0, -0.5, 1.0], [-4.0, 0.25, 1.0]])
    largest = torch.tensor([16.0, 2.0, 0.0], dtype=torch.float64)
    found = smoothing_of(weight, largest, 0.75)
    assert found.tolist() == pytest.approx([16**0.75 / 4**0.25, 2**0.75 / 0.5**0.25, 1.0])
