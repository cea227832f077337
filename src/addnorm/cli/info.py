"""`addnorm info`: what a run or a recipe consists of."""

from pathlib import Path


def info(what: Path) -> None:
    """Describe a run folder or a recipe: its parts, parameters, data and scores.

    Parameters
    ----------
    what
        A run folder or a recipe file.
    """
    from rich.console import Console

    from addnorm.runs.description import describe

    Console(highlight=False).print(describe(what))
