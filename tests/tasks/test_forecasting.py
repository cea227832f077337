"""Errors of forecasts: summed over batches they are those of all windows at once."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from addnorm.data.scaling import Scaling
from addnorm.tasks.forecasting import ForecastErrors


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 6))
def test_batches_add_up(sizes: list[int], horizon: int) -> None:
    said, truth = torch.randn(2, sum(sizes), 3, horizon).double()
    errors = ForecastErrors()
    for some, others in zip(said.split(sizes), truth.split(sizes), strict=True):
        total = errors.add(some, others)
        assert_close(total, float((some - others).square().sum()))
    assert_close(errors.scores["mse"], float((said - truth).square().mean()))
    assert_close(errors.scores["mae"], float((said - truth).abs().mean()))
    scaling = Scaling((5.0, 6.0, 7.0), (2.0, 3.0, 10.0))
    wrong = scaling.in_units(said) - scaling.in_units(truth)
    units = errors.in_units(("a", "b", "c"), scaling)
    assert_close(units["mse of b"], float(wrong[:, 1].square().mean()))
    assert_close(units["mae of c"], float(wrong[:, 2].abs().mean()))
