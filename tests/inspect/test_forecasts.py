"""The picture of a forecast: a row for each variable, and what is known of each."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch

from addnorm.inspect.forecasts import forecast_picture
from addnorm.runs.types import Forecast


@pytest.mark.parametrize("known", [True, False])
def test_each_variable_has_its_lines(known: bool, tmp_path: Path) -> None:
    times = [datetime(2020, 1, 1) + timedelta(hours=i) for i in range(206)]
    said = torch.randn(2, 6).double()
    truth = said + 1 if known else None
    past = torch.randn(2, 200).double()
    one = Forecast(("low", "$high"), tuple(times[:200]), tuple(times[200:]), past, said, truth)
    figure = forecast_picture(one, tmp_path / "f.svg", "a title")
    assert (tmp_path / "f.svg").stat().st_size > 1000
    assert len(figure.axes) == 2
    for i, ax in enumerate(figure.axes):
        lines = {str(line.get_label()): line.get_ydata() for line in ax.lines}
        assert [*lines] == (["past", "truth", "forecast"] if known else ["past", "forecast"])
        assert [*lines["past"]] == past[i, -100:].tolist()
        assert [*lines["forecast"]][1:] == said[i].tolist()
