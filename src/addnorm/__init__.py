"""AddNorm: Transformers you can read, train and trust. Importing it is cheap: no torch yet."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    import torch

    from addnorm.runs.folder import Run

__version__ = "0.1.0.dev0"


def load(
    folder: "str | PathLike[str]", *, dtype: "torch.dtype | None" = None, pickled: bool = False
) -> "Run":
    """The trained model in a run folder or a Hugging Face folder, with its tokenizer and labels.

    `dtype` is by default that of the weights as they are stored. `pickled` allows a
    `pytorch_model.bin`, which torch's weights-only reader opens. Raises `InputError`, a
    `ValueError`, naming what is missing, damaged or not supported.
    """
    from pathlib import Path

    from addnorm.runs.folder import Run

    return Run.open(Path(folder), dtype=dtype, pickled=pickled)
