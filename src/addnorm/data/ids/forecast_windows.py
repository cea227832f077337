"""Windows of a series, cut on access: a look-back to read and a horizon to forecast."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.examples import Corpus, Report, Series
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.layout import SeriesWindows
from addnorm.data.scaling import Scaling, check_interval
from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError

HOLE = "a gap or an empty cell in the window"


@dataclass(frozen=True, eq=False)
class ForecastWindows(Sequence[Encoded]):
    """The windows of one part of a series, each cut from `values` on access.

    `starts` has the first step that each forecasts, from the `look_back` steps before. A naive
    forecast repeats the last `season` steps.
    """

    values: Float[Tensor, "variables time"]
    starts: Ids
    look_back: int
    horizon: int
    season: int | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, i: int) -> Encoded: ...
    @overload
    def __getitem__(self, i: slice) -> list[Encoded]: ...
    def __getitem__(self, i: int | slice) -> Encoded | list[Encoded]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        n = range(len(self))[i]
        start = int(self.starts[n])
        past = self.values[:, start - self.look_back : start]
        return Encoded(n, [], [], past, self.values[:, start : start + self.horizon])


def encode_series(
    corpus: Corpus, look_back: int, horizon: int, scaling: Scaling | None = None
) -> EncodedCorpus:
    """Scale the parts of a series, and find the windows in each.

    The `scaling` is by default that of the training part. Windows with a gap or an empty cell are
    left out, and counted in the reports with the line of the first step that they forecast. Raises
    `InputError` for a part without a window, or whose interval differs from the scaling's.
    """
    reports: dict[str, Report] = {}
    parts: dict[str, Sequence[Encoded]] = {"train": (), "valid": (), "test": ()}
    for split, examples in corpus.splits.items():
        for series in examples:
            assert isinstance(series, Series)
            if scaling is not None:
                check_interval(f"the {split} part of the series", series.scaling.interval, scaling)
            values = (scaling or series.scaling).scaled(series.values)
            starts, reports[split] = _starts(series, look_back, horizon, split)
            parts[split] = ForecastWindows(values, starts, look_back, horizon, series.season)
    return EncodedCorpus(
        "forecasting", 0, 0, parts["train"], parts["valid"], parts["test"],
        reports=reports, medium="series", layout=SeriesWindows(),
    )  # fmt: skip


def _starts(series: Series, look_back: int, horizon: int, split: str) -> tuple[Ids, Report]:
    """Return the first step that each window forecasts, and a report on skipped windows."""
    first, n_steps = max(series.start, look_back), series.values.shape[1]
    starts = np.arange(first, n_steps - horizon + 1)
    if not len(starts):
        raise InputError(
            f"the {split} part of the series has {n_steps - series.start:,} steps, and {first:,} "
            f"before the first forecast: no window of look_back = {look_back} and "
            f"horizon = {horizon} fits"
        )
    holes = np.isnan(series.values.numpy()).any(0)
    before = np.concatenate([[0], np.cumsum(holes)])
    whole = before[starts + horizon] == before[starts - look_back]
    places: list[int] = starts[~whole].tolist()
    left_out = [series.places[i] for i in places]
    report = Report(len(starts), int(whole.sum()), {HOLE: left_out} if left_out else {})
    if not whole.any():
        raise InputError(f"{split} has no window without a gap or an empty cell: {report}")
    return starts[whole], report


def naive_forecasts(
    past: Float[Tensor, "batch variables look_back"], horizon: int, season: int | None
) -> dict[str, Float[Tensor, "batch variables horizon"]]:
    """Return the baseline forecasts: the last value repeated, or the last known season."""
    forecasts = {"last_value": past[..., -1:].expand(-1, -1, horizon)}
    if season is not None and 1 < season <= past.shape[-1]:
        steps = past.shape[-1] - season + torch.arange(horizon) % season
        forecasts["last_season"] = past[..., steps]
    return forecasts
