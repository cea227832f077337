"""`addnorm forecast`: the next steps after a history, written in units and drawn."""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from addnorm.atomic import make_folder
from addnorm.cli.main import NewFile
from addnorm.cli.plot import check_picture
from addnorm.cli.where import ANYWHERE, GROUP, Imports, Where, import_named
from addnorm.runs.options import ForecastOptions

if TYPE_CHECKING:
    from addnorm.runs.inference.results import Forecast


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """Where a forecast is written and drawn.

    Parameters
    ----------
    out
        The CSV file to write; by default standard output.
    plot
        A picture of the past, the forecast and the truth, .png, .svg or .pdf.
    """

    out: NewFile | None = None
    plot: NewFile | None = None

    def __post_init__(self) -> None:
        if self.plot is not None:
            check_picture(self.plot, "--plot")


TO_STANDARD_OUTPUT = Output()
USUAL: ForecastOptions = {}


def forecast(
    run: Path,
    history: Path,
    *,
    steps: Annotated[ForecastOptions, GROUP] = USUAL,
    output: Output = TO_STANDARD_OUTPUT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Forecast the next steps of every variable of a series after the end of its history.

    Writes CSV with the time of each step and the values in their units; the model reads the history
    by the names and the scaling of its training data.
    Example: `addnorm forecast runs/my history.csv --until 2018-01-01 --plot forecast.png`.

    Parameters
    ----------
    run
        The run folder.
    history
        A table like that of the training data.
    """
    import_named(imports)
    opened = where.open(run)
    result = opened.forecast(history, **steps)
    if output.plot is not None:
        from addnorm.inspect.predictions import forecast_picture

        title = f"{run.name}: {history.name} from {result.times[0]} on"
        forecast_picture(result, output.plot, title)
    if output.out is None:
        _write(result, sys.stdout)
        return
    make_folder(output.out.parent)
    with output.out.open("w", encoding="utf-8", newline="") as file:
        _write(result, file)


def _write(result: "Forecast", file: TextIO) -> None:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["time", *result.names])
    rows.writerows(_rows(result))


def _rows(result: "Forecast") -> Iterator[list[str]]:
    for time, values in zip(result.times, result.values.T.tolist(), strict=True):
        yield [str(time), *(f"{value:.9g}" for value in values)]
