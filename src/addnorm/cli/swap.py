"""`addnorm swap`: change parts of a trained model, and measure the cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_to_keep_model
from addnorm.cli.main import NewPlace, with_options
from addnorm.cli.where import ON_CPU, Imports, import_named
from addnorm.runs.options import SwapOptions

if TYPE_CHECKING:
    from addnorm.runs.rewriting.swap import SwapReport


NOTHING = SwapOptions()


def swap(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: NewPlace,
    options: SwapOptions = NOTHING,
    imports: Imports = (),
) -> None:
    """Change parts of a trained model, keep what can be kept, and measure before and after.

    Every weight is listed as exact, folded into others, derived from the old ones, or new. Any
    field of the recipe can be given after the run: `--data.kind text`, `--train.lr 3e-4`.
    Example: `addnorm swap runs/gpt --set norm=rmsnorm --out runs/rms`.

    Parameters
    ----------
    run
        A run folder, or a Hugging Face folder.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder to write.
    """
    fields = fields_to_keep_model(overrides, "`sets = PATH=…`")
    import_named(imports)
    opened = ON_CPU.open(run, fields)
    from addnorm.cli.terminal import console
    from addnorm.runs.rewriting.swap import swap_run

    report = swap_run(opened, out, options, fields, console)
    _print(report, options.split)
    console.out(f"Next: addnorm info {out}", highlight=False)


def _print(swapped: "SwapReport", split: str) -> None:
    """Print the weights by part, what was lost, and the scores."""
    from rich.table import Table

    from addnorm.cli.terminal import figures_table, output

    console = output(markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("weights", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("how", overflow="fold")
    for part in swapped.parts():
        table.add_row(part.name, f"{part.n_weights:,}", part.kind, part.how)
    console.print(table)
    transfer, unused = swapped.transfer, swapped.unused()
    lines = [f"left out: {', '.join(unused)}"] if unused else []
    lines += [f"added, so that nothing is lost: model.{change}" for change in swapped.added]
    lines += [f"another function: {reason}" for reason in transfer.changed]
    lines += [] if transfer.changed else ["the same function as before"]
    console.print("\n".join(["", *lines, ""]), soft_wrap=True)
    if swapped.unmeasured is not None:
        console.print(
            f"nothing was measured: {with_options(swapped.unmeasured, 'swap')}", soft_wrap=True
        )
    else:
        console.print(f"scores of the {split} split:")
        figures = figures_table(swapped.figures)
        for score in next(iter(swapped.figures.values())):
            figures.add_row(score, *(f"{by[score]:.4f}" for by in swapped.figures.values()))
        console.print(figures)
