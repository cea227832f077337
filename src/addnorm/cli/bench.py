"""`addnorm bench`: ours beside its peers, on this machine."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


def bench(
    *works: str,
    rounds: Annotated[int, Parameter(validator=Number(gte=1))] = 5,
    out: Path = Path("benchmarks/results"),
    listed: Annotated[bool, Parameter(name="--list", negative="", show_default=False)] = False,
) -> None:
    """Measure ours and the installed peers in turn, each in a process of its own.

    Shows medians with their spread, the fraction of what the machine itself can do, and the targets
    of each work; writes all of it to `bench-WORK.json`.
    `pip install 'addnorm[bench]'` brings the peers.

    Parameters
    ----------
    works
        Which works; all of them if none is named.
    rounds
        How often each contender has its turn.
    out
        The folder for the figures.
    listed
        Say which works there are, and measure nothing.
    """
    from rich.console import Console

    from addnorm.bench import report
    from addnorm.bench.run import bench as run
    from addnorm.bench.works import named
    from addnorm.cli.terminal import console

    chosen = named(works)
    shown = Console(highlight=False)
    if listed:
        width = max(len(work.name) for work in chosen)
        for work in chosen:
            print(f"{work.name:{width}}  {work.description}")
        return
    for work in chosen:
        with console.status(work.name) as status:
            result = run(
                work, rounds, watch=lambda said, w=work: status.update(f"{w.name}: {said}")
            )
        report.show(result, shown)
        print(f"figures: {report.write(result, out)}")
