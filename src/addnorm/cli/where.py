"""`--device`, `--dtype` and `--import`: options of every command that opens a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.files import check_model_folder
from addnorm.runs.options import Weights

if TYPE_CHECKING:
    from addnorm.runs.run import Run

GROUP = Parameter(name="*", negative="")
"""Marks an argument that is a dictionary of options, each an option of the command."""

Imports = Annotated[
    tuple[str, ...],
    Parameter(
        name="--import",
        negative="",
        show_default=False,
        help="A file or module with parts of your own: `my_parts.py`. May be given again.",
    ),
]
"""The option of all commands that support custom parts."""


def import_named(names: Sequence[str]) -> None:
    """Import the named files and modules. Raises `InputError` if one does not exist."""
    if names:
        from addnorm.runs.recipes.custom_parts import import_parts

        import_parts(names)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a model runs.

    Parameters
    ----------
    device
        `auto` is a GPU where there is one; else `cpu`, `cuda`, `cuda:1` or `mps`.
    dtype
        The type of the weights; by default the one in which they are stored.
    """

    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None

    def open(
        self,
        folder: Path,
        overrides: Mapping[str, str] | None = None,
        weights: Weights | None = None,
    ) -> "Run":
        """Open the run in a folder, on this device and with this dtype."""
        check_model_folder(folder)
        from addnorm.runs.run import Run

        return Run.open(folder, overrides, device=self.device, dtype=self.dtype, weights=weights)


ANYWHERE = Where()
