"""`addnorm lab`: claims of the tutorials, settled by experiment."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from addnorm.cli.main import NewPlace
from addnorm.errors import InputError
from addnorm.lab import check_packages
from addnorm.lab.claims import CLAIMS, claims_called
from addnorm.lab.records import boards_of

if TYPE_CHECKING:
    from rich.table import Table

lab = App(
    name="lab",
    help="Measure ten claims that tutorials repeat, and say which of them hold.",
    group_commands="Commands",
)

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
FOLDER = Path("lab")


@lab.command(name="list")
def list_claims(*, out: Path = FOLDER) -> None:
    """List the claims, and the verdicts of those that are measured.

    Example: `addnorm lab list`.

    Parameters
    ----------
    out
        The folder with the figures.
    """
    from addnorm.cli.terminal import output

    output().print(_verdicts(CLAIMS, out))


def _verdicts(names: Sequence[str], out: Path) -> "Table":
    """A table of claims, with the verdict for each kind of data that was measured in `out`."""
    from rich.table import Table

    from addnorm.lab.claims import claim_called
    from addnorm.lab.claims.claim import verdict
    from addnorm.lab.claims.laboratory import findings_of, measured

    table = Table("claim", "subject", "data", "verdict")
    for name in names:
        claim = claim_called(name)
        figures = measured(out, name)
        verdicts = [(of_task.task, verdict(findings_of(claim, of_task))) for of_task in figures]
        for task, word in verdicts or [("", "not measured")]:
            table.add_row(name, claim.title[0], task, word)
    return table


@lab.command
def run(
    *claims: str,
    quick: Flag = False,
    full: Flag = False,
    night: Flag = False,
    out: NewPlace = FOLDER,
    processes: int | None = None,
    root: Annotated[Path | None, Parameter(name="--data.root")] = None,
) -> None:
    """Measure claims and write their report; what was measured before is not measured again.

    Example: `addnorm lab run all --quick`.

    Parameters
    ----------
    claims
        Names as `addnorm lab list` shows them, or all.
    quick
        Three seeds of small models, all claims in about ten minutes; the default.
    full
        Five seeds and more steps, lengths and layers: about two and a half hours on two cores.
    night
        The same with the longest, widest and deepest models: about eight hours on two cores.
    out
        The folder of figures and report.
    processes
        How many cells run at once; by default as many as there are cores.
    root
        A folder with `tinyshakespeare/input.txt` or `multi30k/train.de.gz`: six claims are then
        measured on the characters of each as well, which costs as much again each time.
    """
    sizes = [size for size, given in (("quick", quick), ("full", full), ("night", night)) if given]
    if len(sizes) > 1:
        raise InputError(f"--{sizes[0]} and --{sizes[1]}: give one of them")
    if not claims:
        raise InputError("no claims to run: give names that `addnorm lab list` shows, or all")
    claims = claims_called(claims)
    check_packages("`addnorm lab run`")
    from addnorm.cli.terminal import console
    from addnorm.lab.claims.laboratory import jobs_of, run_with_progress
    from addnorm.lab.claims.report import write_claims_report
    from addnorm.lab.executor import workers

    size: Literal["quick", "full", "night"] = "full" if full else "night" if night else "quick"
    jobs = jobs_of(claims, size, root)
    run_with_progress(jobs, out, workers(processes), console)
    for file in write_claims_report(out):
        console.out(str(file), highlight=False)
    console.print(_verdicts(claims, out))


@lab.command
def report(*, out: NewPlace = FOLDER) -> None:
    """Write the report again from the saved figures.

    Example: `addnorm lab report --out lab`.

    Parameters
    ----------
    out
        The folder of figures and report.
    """
    check_packages("`addnorm lab report`")
    from addnorm.cli.terminal import console
    from addnorm.lab.claims.laboratory import has_figures
    from addnorm.lab.claims.report import write_claims_report

    if not has_figures(out):
        raise InputError(f"{out}: no figures of claims; addnorm lab run all --quick makes them")
    for file in write_claims_report(out):
        console.out(str(file), highlight=False)


@lab.command
def speedrun(
    board: str,
    recipe: Path | None = None,
    *,
    seeds: int = 3,
    out: NewPlace = Path("speedruns"),
    root: Annotated[Path, Parameter(name="--data.root")],
) -> None:
    """Time how long a recipe trains to a given figure, compared with the record.

    Example: `addnorm lab speedrun shakespeare-1.88 my.toml --data.root data`.

    Parameters
    ----------
    board
        The figure to reach: shakespeare-1.88 and shakespeare-1.58 nats, multi30k-41 BLEU, digits-99
        percent; shakespeare alone is both of its boards.
    recipe
        A recipe on the board's data; by default the record runs against the one before it.
    seeds
        The number of runs of each recipe, in turn.
    out
        The folder of recipes, runs and times.
    root
        The folder with the data.
    """
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: must be at least 1")
    boards = boards_of(board)
    from addnorm.cli.terminal import console, output
    from addnorm.lab.speedrun import speedrun as run_board

    for name in boards:
        output().print(run_board(name, recipe, seeds, root, out, console))
