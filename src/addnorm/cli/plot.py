"""`addnorm plot`: plot the training curves of one or more runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.main import NewFile
from addnorm.errors import InputError, choices, nearest

SUFFIXES = (".png", ".svg", ".pdf")


def plot(
    *runs: Annotated[Path, Parameter(show_default=False)],
    out: NewFile | None = None,
) -> None:
    """Draw the loss, the learning rate and the gradient norm of runs, over one another.

    Example: `addnorm plot runs/my runs/other --out both.svg`.

    Parameters
    ----------
    runs
        Run folders, finished or not.
    out
        The picture, .png, .svg or .pdf; by default `curves.png` in the folder of a single run, and
        in the current folder for several.
    """
    from addnorm.cli.terminal import console

    if not runs:
        raise InputError("plot needs a run folder: `addnorm plot runs/my`")
    for run in runs:
        if not run.is_dir():
            siblings = [folder.name for folder in run.parent.glob("*") if folder.is_dir()]
            problem = "a file, not a run folder" if run.exists() else "no such run folder"
            raise InputError(f"{run}: {problem}.{nearest(run.name, siblings)}")
    runs = tuple({run.resolve(): run for run in runs}.values())
    file = out or (runs[0] if len(runs) == 1 else Path()) / "curves.png"
    check_picture(file)
    from addnorm.inspect.curves import Curves, distinct_names, training_picture

    names = distinct_names(runs)
    training_picture([Curves.of(run, name) for run, name in zip(runs, names, strict=True)], file)
    console.out(str(file), highlight=False)


def check_picture(out: Path, option: str = "--out") -> None:
    """Raise `InputError` for a file name that is not that of a picture format."""
    check_ending(out, option, SUFFIXES)


def check_ending(out: Path, option: str, valid: Sequence[str]) -> None:
    """Raise `InputError` for a file whose name does not end in one of the `valid` suffixes."""
    if out.suffix not in valid:
        problem = f"{out.suffix} is not a valid form" if out.suffix else "lacks an ending"
        raise InputError(f"{option} {out}: {problem}.{choices(out.suffix, valid)}")
