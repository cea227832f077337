"""Forecasting with a trained model: the next steps after a history, in the units of its table."""

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data import SeriesConfig
from addnorm.data.readers.series import SeriesTable, read_series, step_at
from addnorm.data.readers.text_files import find
from addnorm.data.scaling import check_interval
from addnorm.errors import InputError
from addnorm.runs.inference.results import Forecast
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.registry import wrong_task

MOST_STEPS = 1_000_000
"""The longest forecast; a larger number is a mistake, and fills the memory."""


def forecast(
    run: TrainedModel,
    history: Path,
    *,
    horizon: int | None = None,
    until: str | None = None,
    truth: Path | None = None,
) -> Forecast:
    """Forecast `horizon` steps after a table, or after its last row before the date `until`.

    The default is the number of steps that the model was trained for; of more, the later ones are
    forecast from its own forecasts. The truth is from the table `truth`, else from the rows of the
    history from `until` on. Raises `InputError` for a model of another task, and for a table that
    is wrong, too short, or has gaps where the model reads.
    """
    look_back, at_once = window_of(run)
    if horizon is not None and not 1 <= horizon <= MOST_STEPS:
        raise InputError(f"`horizon = {horizon}`: must be at least 1 and at most {MOST_STEPS}")
    horizon = at_once if horizon is None else horizon
    table = read_like(run, history)
    end = table.n_steps if until is None else step_at(table, until, "`until`")
    past = table.values[:, max(0, end - look_back) : end]
    _check_past(table, past, end, look_back)
    return Forecast(
        run.labels,
        tuple(map(table.time, range(end - look_back, end))),
        tuple(map(table.time, range(end, end + horizon))),
        past,
        next_steps(run, past, horizon),
        _truth(table, None if truth is None else read_like(run, truth), end, horizon),
    )


def window_of(run: TrainedModel) -> tuple[int, int]:
    """Return how many steps a model reads, and how many it forecasts at once.

    Raises `InputError` for a model of another task.
    """
    task = run.task_value
    if not isinstance(task, Forecasting):
        raise wrong_task(run, "does not forecast")
    return task.look_back, task.horizon


def read_like(run: TrainedModel, file: Path) -> SeriesTable:
    """Read a table with the column names and settings of a run's data; gaps are allowed.

    Raises `InputError` as `read_series` does, and for a table of another interval.
    """
    data = run.recipe.data
    assert isinstance(data, SeriesConfig)
    table = read_series(
        find(file, Path()),
        data.time_column,
        run.labels,
        missing="leave_out",
        encoding=data.encoding,
    )
    assert run.scaling is not None
    check_interval(str(table.file), table.interval, run.scaling)
    return table


@torch.inference_mode()
def next_steps(
    run: TrainedModel, past: Float[Tensor, "variables look_back"], horizon: int
) -> Float[Tensor, "variables horizon"]:
    """Forecast the steps after the past; both are in the units of the table."""
    assert run.scaling is not None
    look_back, _ = window_of(run)
    series = run.scaling.scaled(past)
    while series.shape[1] < past.shape[1] + horizon:
        window = series[None, :, -look_back:].to(run.device)
        series = torch.cat([series, run.model(window)[0].float().cpu()], -1)
    return run.scaling.in_units(series[:, past.shape[1] : past.shape[1] + horizon])


def _check_past(table: SeriesTable, past: Tensor, end: int, look_back: int) -> None:
    if end < look_back:
        raise InputError(
            f"{table.file}: {end:,} steps before the forecast: the model reads {look_back:,}"
        )
    holes = past.isnan().any(0).nonzero().flatten().tolist()
    if holes:
        place = table.places[end - look_back + holes[0]]
        raise InputError(
            f"{place}: a gap or an empty cell at {table.time(end - look_back + holes[0])}, which "
            f"the model reads: it needs {look_back:,} steps without one"
        )


def _truth(
    table: SeriesTable, other: SeriesTable | None, end: int, horizon: int
) -> Float[Tensor, "variables horizon"] | None:
    """Return the true values of the steps from `end` on; None if all are unknown."""
    values = torch.full((len(table.names), horizon), math.nan, dtype=torch.float64)
    held = table if other is None else other
    if other is not None and other.interval != table.interval:
        raise InputError(
            f"{other.file}: its interval is {other.interval}, and that of {table.file} "
            f"{table.interval}"
        )
    shift = held.interval.position(held.start, table.time(end))
    first = int(shift)
    for step in range(horizon):
        if shift == first and 0 <= first + step < held.n_steps:
            values[:, step] = held.values[:, first + step]
    any_known = not bool(values.isnan().all())
    if other is not None and not any_known:
        raise InputError(
            f"{other.file} goes from {other.start} to {other.time(other.n_steps - 1)}, and the "
            f"forecast begins at {table.time(end)}: it holds no truth for the forecast"
        )
    return values if any_known else None
