"""`addnorm info`: what a run or a recipe consists of."""

from pathlib import Path

from addnorm.cli.imports import Imports, import_named


def info(what: Path, *, imports: Imports = ()) -> None:
    """Describe a run folder or a recipe: its parts, parameters, data and scores.

    Example: `addnorm info runs/my`.

    Parameters
    ----------
    what
        A run folder or a recipe file.
    """
    from rich.console import Console

    from addnorm.runs.description import describe

    import_named(imports)
    Console(highlight=False).print(describe(what))
