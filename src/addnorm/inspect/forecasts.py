"""A picture of a forecast: the past, the forecast and the truth of each variable."""

from pathlib import Path

from addnorm.inspect.pictures import FAINT, INK, Figure, Lettering, blank_figure, finished, style
from addnorm.runs.types import Forecast

PAST, FORECAST, TRUTH = "#7a8794", "#c8553d", "#0f6ba8"


def forecast_picture(forecast: Forecast, path: Path | None = None, title: str = "") -> Figure:
    """Draw the past, the forecast and the truth of each variable, one above the other.

    Of the past, as much is drawn as the model read, but at most three times the horizon, or a
    hundred steps. `path` ends in .png, .pdf or .svg.
    """
    n = len(forecast.names)
    shown = min(len(forecast.past_times), max(100, 3 * len(forecast.times)))
    lettering = Lettering.of([title, *forecast.names])
    figure = blank_figure(8.0, 1.0 + 1.3 * n)
    from matplotlib.dates import DAILY, AutoDateLocator

    grid = figure.subplots(n, 1, sharex=True, squeeze=False)
    for i, (ax, name) in enumerate(zip(grid[:, 0], forecast.names, strict=True)):
        past = forecast.past[i, -shown:].tolist()
        last = [forecast.past_times[-1]], past[-1:]
        ax.plot(forecast.past_times[-shown:], past, color=PAST, lw=1, label="past")
        if forecast.truth is not None:
            truth = [*last[1], *forecast.truth[i].tolist()]
            ax.plot([*last[0], *forecast.times], truth, color=TRUTH, lw=1.2, label="truth")
        values = [*last[1], *forecast.values[i].tolist()]
        ax.plot([*last[0], *forecast.times], values, color=FORECAST, lw=1.4, label="forecast")
        ax.set_ylabel(lettering.line(name), **style(lettering.font(8), INK))
        ax.tick_params(colors=FAINT, labelsize=8, length=2)
        ax.spines[:].set_visible(False)
        ax.grid(color="#e4e9ee", lw=0.6)
    above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    grid[0, 0].legend(frameon=False, fontsize=8, labelcolor=INK, ncols=3, **above)
    grid[-1, 0].xaxis.set_major_locator(AutoDateLocator(maxticks={DAILY: 6}))
    return finished(figure, title, lettering, path)
