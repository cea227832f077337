"""The scaling of a series in a run folder, `scaling.json`."""

from pathlib import Path

from pydantic import TypeAdapter

from addnorm.atomic import atomic_write
from addnorm.data.scaling import Scaling
from addnorm.files import read_json
from addnorm.runs.files.layout import SCALING
from addnorm.runs.recipes.recipe import Recipe
from addnorm.tasks.of_model import task_of_head

SCALES = TypeAdapter(Scaling)


def write_scaling(folder: Path, scaling: Scaling | None) -> None:
    """Write the scaling of the series that a run forecasts; nothing for other runs."""
    if scaling is not None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / SCALING, SCALES.dump_json(scaling, indent=1).decode())


def read_scaling(folder: Path, recipe: Recipe) -> Scaling | None:
    """Read what `write_scaling` wrote; None for a run that forecasts no series.

    Raises `InputError` where the file is missing or damaged.
    """
    if task_of_head(recipe.model.head) != "forecasting":
        return None
    return read_json(folder / SCALING, SCALES)
