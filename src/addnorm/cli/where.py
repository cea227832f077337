"""`--device` and `--dtype`: the device of a model, and the dtype of its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from addnorm.files import check_model_folder

if TYPE_CHECKING:
    from addnorm.runs.run import Run


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

    def open(self, folder: Path, overrides: Mapping[str, str] | None = None) -> "Run":
        """Open the run in a folder, on this device and with this dtype."""
        check_model_folder(folder)
        from addnorm.runs.run import Run

        return Run.open(folder, overrides, device=self.device, dtype=self.dtype)


ANYWHERE = Where()
