"""`--device` and `--dtype`: where a command runs a model, and in which type of weights."""

from dataclasses import dataclass
from typing import Literal

from cyclopts import Parameter


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

    def options(self) -> dict[str, str | None]:
        """The arguments of `Run.open`."""
        return {"device": self.device, "dtype": self.dtype}


ANYWHERE = Where()
