"""`addnorm bench`: benchmark AddNorm against other libraries on this machine."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.bench import check_names
from addnorm.cli.main import NewPlace, at_least


def bench(
    *benchmarks: str,
    rounds: Annotated[int, Parameter(validator=at_least(1))] = 5,
    out: NewPlace = Path("benchmarks/results"),
    listed: Annotated[bool, Parameter(name="--list", negative="", show_default=False)] = False,
) -> None:
    """Measure AddNorm and the installed peers in turn, each in its own process.

    Shows medians with their spread, the fraction of the machine's peak, and the targets of each
    benchmark; writes all of it to `bench-NAME-PROCESSOR.json`.
    `pip install 'addnorm[bench]'` brings the peers. Example: `addnorm bench decode --rounds 3`.

    Parameters
    ----------
    benchmarks
        The names of the benchmarks; by default all.
    rounds
        The number of rounds of each implementation.
    out
        The folder for the figures.
    listed
        Only list the benchmarks.
    """
    check_names(benchmarks)
    from addnorm.bench import report
    from addnorm.bench.benchmarks import named
    from addnorm.bench.run import bench as run
    from addnorm.cli.terminal import console, output
    from addnorm.long_work import long_work
    from addnorm.tuning.calibration import calibrated

    chosen = named(benchmarks)
    shown = output()
    if listed:
        width = max(len(benchmark.name) for benchmark in chosen)
        for benchmark in chosen:
            print(f"{benchmark.name:{width}}  {benchmark.description}")
        return
    with long_work(console, "measuring this machine"):
        measured = calibrated(again=True)
    if measured.disturbed:
        console.out("other work takes the processor: ratios will spread, kernels stay as they are")
    for benchmark in chosen:
        with long_work(console, benchmark.name) as say:
            result = run(
                benchmark,
                rounds,
                watch=lambda progress, w=benchmark: say(f"{w.name}: {progress}"),
            )
        report.show(result, shown)
        print(f"figures: {report.write(result, out)}")
