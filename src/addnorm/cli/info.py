"""`addnorm info`: describe a run or a recipe."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.where import Imports, import_named, working
from addnorm.errors import InputError
from addnorm.files import check_model_folder, read_toml


def info(
    what: Path | None = None,
    *,
    machine: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    verify: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    imports: Imports = (),
) -> None:
    """Describe a run folder or a recipe: its parts, parameters, data and scores; or this machine.

    Example: `addnorm info runs/my`.

    Parameters
    ----------
    what
        A run folder or a recipe file.
    machine
        Show which kernels are used on this machine, and the measurement that this rests on, or
        those that `ADDNORM_KERNELS` gives.
    verify
        Also compare every file of a run, and of its checkpoints, with the digest of what was saved.
    """

    import_named(imports)
    if what is None and not machine:
        raise InputError("info: name a run folder or a recipe, or give --machine")
    if what is not None:
        _check_there(what)
    from addnorm.cli.terminal import output
    from addnorm.runs.description import describe
    from addnorm.runs.files.digests import check_digests
    from addnorm.runs.files.training_machine import given_table, machine_table
    from addnorm.training.checkpoint import check_checkpoint, checkpoints_in
    from addnorm.tuning.calibration import calibrated
    from addnorm.tuning.provider import given_choices

    console = output()
    if machine:
        given = given_choices()
        console.print(machine_table(calibrated()) if given is None else given_table(given))
        return
    assert what is not None
    with working("reading the model"):
        described = describe(what)
    console.print(described)
    if verify:
        with working("comparing the files with their digests"):
            n = check_digests(what)
            n += sum(len(check_checkpoint(file)) for file in checkpoints_in(what / "checkpoints"))
        console.print(f"verified: {n} files are as they were saved")


def _check_there(what: Path) -> None:
    """Raise `InputError` if there is neither a run nor a recipe."""
    if what.suffix == ".toml":
        read_toml(what)
    elif not what.is_file():
        check_model_folder(what)
