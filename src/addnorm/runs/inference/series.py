"""Using a trained model on new series, in tables like those of its training data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data import LabelledSeriesConfig
from addnorm.data.batches.batch import side_by_side
from addnorm.data.readers.text_files import find
from addnorm.errors import InputError, refuse
from addnorm.runs.files.folder import VARIABLES
from addnorm.runs.inference.results import Classified
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.classification import Classification
from addnorm.tasks.registry import wrong_task
from addnorm.tasks.regression import numbers_line


@dataclass(frozen=True)
class SeriesAnswer:
    """The prediction for one series of a table: its class, or its numbers by name."""

    file: Path
    series: str
    classified: Classified | None
    numbers: dict[str, float]

    @property
    def plain(self) -> str:
        """The class, or the numbers with commas between them."""
        return self.classified.label if self.classified else numbers_line(self.numbers.values())

    @property
    def fields(self) -> dict[str, Any]:
        """The class with the probability of every class, or the numbers by name."""
        return asdict(self.classified) if self.classified else self.numbers


@torch.inference_mode()
def answer_series(
    run: TrainedModel,
    files: Sequence[Path],
    *,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[SeriesAnswer]:
    """Yield the class, or the numbers, of each series of each table, in their order.

    A table has the columns of the training data by their names, in any order; the column of the
    answer may be missing, and is not read. `skipped` takes the `InputError` of a series with an
    empty cell, and of a table that cannot be read on, whose rest is then left out; by default it
    raises the error.
    """
    data = run.recipe.data
    if not isinstance(data, LabelledSeriesConfig):
        raise wrong_task(run, "reads no tables of series with an answer")
    if not run.variables:
        where = run.name if run.folder is None else run.folder / VARIABLES
        raise InputError(f"{where}: missing: the run does not have the names of its variables")
    for file in files:
        series = _series(data, file, run.variables, skipped)
        while group := list(islice(series, batch_size)):
            yield from _answered(run, file, group)


def _series(
    data: LabelledSeriesConfig,
    file: Path,
    variables: tuple[str, ...],
    skipped: Callable[[InputError], None],
) -> Iterator[tuple[str, Float[Tensor, "variables time"]]]:
    """Yield each complete series of a table with its name."""
    try:
        for series in data.series(find(file, Path()), variables):
            values = data.values(series)
            if not isinstance(values, str):
                yield series.name, values
                continue
            skipped(InputError(f"{series.where}: series {series.name!r}: {values}"))
    except InputError as error:
        skipped(error)


def _answered(
    run: TrainedModel, file: Path, group: Sequence[tuple[str, Float[Tensor, "variables time"]]]
) -> Iterator[SeriesAnswer]:
    inputs = side_by_side([values for _, values in group])
    outputs = run.model(**{name: tensor.to(run.device) for name, tensor in inputs.items()})
    classes = isinstance(run.task_value, Classification)
    rows = outputs.float().softmax(-1) if classes else outputs.float()
    for (name, _), row in zip(group, rows.tolist(), strict=True):
        if classes:
            yield SeriesAnswer(file, name, Classified.of(run.labels, row), {})
        else:
            yield SeriesAnswer(file, name, None, dict(zip(run.labels, row, strict=True)))
