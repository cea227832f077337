"""`addnorm check`: the combinations of parts against their definition."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Count = Annotated[int, Parameter(validator=Number(gte=0))]


def check(
    *,
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    sample: Count = 200,
    seed: int = 0,
    only: str = "",
    compile: Count = 0,
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
) -> int:
    """Hold tiny models of every combination of parts against their plain definition in float64.

    Logits and gradients; with a cache in random pieces, with padding on either side, alone and in
    a batch, packed as documents. Exits with status 1 where anything differs.

    Parameters
    ----------
    every
        Check all combinations: tens of thousands, about an hour.
    sample
        How many to check, drawn at random, unless `--all` is given.
    seed
        Which sample.
    only
        Those with parts of these names; `*` stands for anything: `decoder/rotary/*/moe`.
    compile
        Whether `torch.compile` gives the same, on that many of them; takes long.
    jobs
        How many processes to use.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from addnorm.check import matrix
    from addnorm.check.run import check as check_cells
    from addnorm.check.run import compiled
    from addnorm.cli.terminal import console

    found = matrix.named(only)
    cells = found if every else matrix.sample(sample, seed, found)
    allowed = [cell for cell in cells if not cell.refusal()]
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("combinations", total=len(cells))
        report = check_cells(cells, jobs=jobs, watch=lambda n: bar.update(task, completed=n))
        few = matrix.sample(compile, seed, allowed)
        for cell in bar.track(few, description="compiled"):
            report.add(compiled(cell))
    Console(highlight=False).print(report.text(), markup=False, soft_wrap=True)
    return 1 if report.failed else 0
