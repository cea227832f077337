"""Windows of a series: those of a plain loop, holes left out and counted, naive forecasts."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from addnorm.data.examples import Corpus, Series
from addnorm.data.ids.forecast_windows import ForecastWindows, encode_series, naive_forecasts
from addnorm.data.scaling import Scaling
from addnorm.errors import InputError

SCALING = Scaling((2.0, -1.0), (3.0, 0.5))


def corpus(values: torch.Tensor, borders: tuple[int, int], season: int | None = None) -> Corpus:
    places = [f"s.csv:{i + 2}" for i in range(values.shape[1])]

    def part(start: int, stop: int) -> tuple[Series, ...]:
        one = Series(values[:, :stop], start, ("a", "b"), places, SCALING, season)
        return (one,) if stop > start else ()

    return Corpus(part(0, borders[0]), part(*borders), part(borders[1], values.shape[1]))


@settings(max_examples=50)
@given(
    n=st.integers(12, 40),
    look_back=st.integers(1, 5),
    horizon=st.integers(1, 4),
    holes=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 39)), max_size=2),
)
def test_windows_are_those_of_a_plain_loop(
    n: int, look_back: int, horizon: int, holes: list[tuple[int, int]]
) -> None:
    values = torch.randn(2, n).double()
    for variable, step in holes:
        values[variable, step % n] = math.nan
    borders = n - 2 * (horizon + 1), n - horizon - 1
    scaled = [[(v - m) / s for v in row] for row, m, s in
              zip(values.tolist(), SCALING.mean, SCALING.deviation, strict=True)]  # fmt: skip
    expected: dict[str, list[Any]] = {}
    left_out: dict[str, int] = {}
    parts = {"train": (0, borders[0]), "valid": borders, "test": (borders[1], n)}
    for split, (start, stop) in parts.items():
        for i in range(max(start, look_back), stop - horizon + 1):
            past = [row[i - look_back : i] for row in scaled]
            future = [row[i : i + horizon] for row in scaled]
            if any(math.isnan(v) for row in (*past, *future) for v in row):
                left_out[split] = left_out.get(split, 0) + 1
            else:
                expected.setdefault(split, []).append((past, future))
    if len(expected) < 3:
        with pytest.raises(InputError, match=r"no window"):
            encode_series(corpus(values, borders), look_back, horizon)
        return
    encoded = encode_series(corpus(values, borders), look_back, horizon)
    for split, windows in encoded.splits.items():
        assert len(windows) == len(expected[split])
        for i, (one, (past, future)) in enumerate(zip(windows, expected[split], strict=True)):
            assert one.index == i
            assert_close(one.signal, torch.tensor(past), rtol=1e-5, atol=1e-6)
            assert_close(one.values, torch.tensor(future), rtol=1e-5, atol=1e-6)
        report = encoded.reports[split]
        assert report.used == len(windows)
        assert report.read - report.used == left_out.get(split, 0)


def test_windows_left_out_have_their_line() -> None:
    values = torch.arange(40.0).repeat(2, 1).double()
    values[1, 10] = math.nan
    report = encode_series(corpus(values, (20, 30)), 2, 2).reports["train"]
    assert report.left_out == {
        "a gap or an empty cell in the window": ["s.csv:11", "s.csv:12", "s.csv:13", "s.csv:14"]
    }
    assert str(report).startswith("17 read, 13 used, 4 left out: a gap")


def test_no_window_is_copied_before_its_turn() -> None:
    encoded = encode_series(corpus(torch.randn(2, 60).double(), (20, 40)), 8, 4)
    assert isinstance(encoded.train, ForecastWindows)
    first, second = encoded.train[:2]
    assert first.signal is not None
    assert second.signal is not None
    assert first.signal.untyped_storage().data_ptr() == second.signal.untyped_storage().data_ptr()


def test_a_part_too_short_is_named() -> None:
    with pytest.raises(InputError, match=r"the valid part of the series has 2 steps.* horizon = 4"):
        encode_series(corpus(torch.randn(2, 60).double(), (30, 32)), 8, 4)


def test_naive_forecasts() -> None:
    past = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    found = naive_forecasts(past, 5, 3)
    assert found["last_value"].tolist() == [[[4, 4, 4, 4, 4]]]
    assert found["last_season"].tolist() == [[[2, 3, 4, 2, 3]]]
    assert naive_forecasts(past, 2, 5).keys() == naive_forecasts(past, 2, None).keys()
