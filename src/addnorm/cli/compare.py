"""`addnorm compare`: runs side by side."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.main import NewPlace
from addnorm.cli.where import Imports, import_named, working
from addnorm.files import check_model_folder


def compare(
    *runs: Annotated[Path, Parameter(show_default=False)],
    out: NewPlace | None = None,
    imports: Imports = (),
) -> None:
    """Show runs side by side: the differences of their recipes, their cost and their scores.

    Example: `addnorm compare runs/a runs/b --out comparison`.

    Parameters
    ----------
    runs
        Run folders of the same task, finished or not.
    out
        A folder for the table as Markdown, JSON and LaTeX (booktabs), and the learning curves as
        PNG and SVG; by default the table is only printed.
    """
    import_named(imports)
    for run in runs:
        check_model_folder(run)
    from addnorm.cli.terminal import console, output
    from addnorm.lab.comparison import compare as compare_runs
    from addnorm.lab.comparison import comparison_table, write_comparison

    with working("comparing"):
        comparison = compare_runs(runs)
    output().print(comparison_table(comparison))
    if out is not None:
        for file in write_comparison(comparison, out):
            console.out(str(file), highlight=False)
