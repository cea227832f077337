"""Pictures of predictions: a confusion matrix of counts, and lines for each forecast variable."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from addnorm.errors import InputError
from addnorm.inspect import predictions
from addnorm.inspect.predictions import confusion_picture, forecast_picture
from addnorm.runs.inference.results import Forecast

PAIRS = [("a", "a"), ("a", "b"), ("b", "b"), ("b", "b"), ("$x", "a")]


def drawn(monkeypatch: pytest.MonkeyPatch, labels: list[str], file: Path) -> Figure:
    figures: list[Figure] = []
    whole = predictions.finished

    def finished(figure: Figure, *rest: object) -> Figure:
        figures.append(whole(figure, *rest))
        return figures[0]

    monkeypatch.setattr(predictions, "finished", finished)
    confusion_picture(PAIRS, labels, file)
    return figures[0]


def test_cells_are_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = drawn(monkeypatch, ["$x", "a", "b"], tmp_path / "a.png")
    [ax] = figure.axes
    cells = {(*text.get_position(),): text.get_text() for text in ax.texts}
    assert cells == {(1, 0): "1", (1, 1): "1", (2, 1): "1", (2, 2): "2"}  # (taken for, class)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["$x", "a", "b"]
    assert ax.images[0].get_array().tolist() == [[0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_cells_of_many_classes_have_no_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labels = ["$x", "a", "b", *(f"class {i}" for i in range(30))]
    figure = drawn(monkeypatch, labels, tmp_path / "a.svg")
    assert not figure.axes[0].texts


def test_an_unknown_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="end the name in"):
        confusion_picture(PAIRS, ["$x", "a", "b"], tmp_path / "a.doc")


@pytest.mark.parametrize("with_truth", [True, False])
def test_each_variable_has_its_lines(with_truth: bool, tmp_path: Path) -> None:
    times = [datetime(2020, 1, 1) + timedelta(hours=i) for i in range(206)]
    values = torch.randn(2, 6).double()
    truth = values + 1 if with_truth else None
    past = torch.randn(2, 200).double()
    forecast = Forecast(
        ("low", "$high"), tuple(times[:200]), tuple(times[200:]), past, values, truth
    )
    figure = forecast_picture(forecast, tmp_path / "f.svg", "a title")
    assert (tmp_path / "f.svg").stat().st_size > 1000
    assert len(figure.axes) == 2
    for i, ax in enumerate(figure.axes):
        lines = {str(line.get_label()): line.get_ydata() for line in ax.lines}
        assert [*lines] == (["past", "truth", "forecast"] if with_truth else ["past", "forecast"])
        assert [*lines["past"]] == past[i, -100:].tolist()
        assert [*lines["forecast"]][1:] == values[i].tolist()
