"""Running the claims: every cell with every seed, in processes, kept line by line as it ends."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import SEEK_END
from pathlib import Path
from typing import Any

import xxhash
from rich.console import Console

from addnorm.errors import InputError, Interrupted
from addnorm.lab.ablation import progress_bar
from addnorm.lab.cell import prepare_process
from addnorm.lab.claims import CLAIMS, claim_called, claims_called
from addnorm.lab.claims.claim import SEEDS, Results, Row, Settings, Size
from addnorm.lab.claims.tasks import MADE
from addnorm.lab.costs import plan
from addnorm.lab.executor import outcomes, processes
from addnorm.processor import processor

NATURAL = ("tinyshakespeare/input.txt", "multi30k/train.de.gz")
"""The natural language, below the root of the data: plays, and German captions of pictures."""

ALONE = "alone"
"""The mark of a cell that measures time, beside which nothing else may run."""

Watch = Callable[[int, int, str], None]
"""Is told how many cells are done, of how many, and what the last one was."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell of a claim with one seed."""

    claim: str
    size: Size
    task: str
    settings: Settings
    seed: int


def jobs_of(names: Sequence[str], size: Size, root: Path | None = None) -> list[Job]:
    """All cells of some claims, seed by seed; with data below `root`, on natural language as well.

    Raises `InputError` for a claim that does not exist, or where there is no such data.
    """
    files = [] if root is None else natural_files(root)
    found: list[Job] = []
    for name in claims_called(names):
        claim = claim_called(name)
        tasks = [MADE, *(map(str, files) if claim.natural else ())]
        found += [
            Job(claim=name, size=size, task=named(task), settings=settings, seed=seed)
            for task in tasks
            for seed in range(1, SEEDS[size] + 1)
            for settings in claim.cells(size, task)
        ]
    return found


def natural_files(root: Path) -> list[Path]:
    """The natural language that is below `root`. Raises `InputError` if there is none."""
    files = [root / name for name in NATURAL]
    if not any(file.is_file() for file in files):
        raise InputError(f"`root`: neither {files[0]} nor {files[1]} is there")
    return [file for file in files if file.is_file()]


def named(task: str) -> str:
    """What a task is called in files: its file's folder, never a path of one machine."""
    return task if task == MADE else Path(task).parent.name


def run_job(job: Job) -> list[Row]:
    """Measure a cell, in a process of one thread."""
    prepare_process(1, ())
    return list(claim_called(job.claim).measure(job.settings, job.seed))


def timed_job(job: Job) -> tuple[list[Row], float]:
    """The same, and the seconds that it took."""
    begun = time.perf_counter()
    rows = run_job(job)
    return rows, time.perf_counter() - begun


def left_of(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The cells that are not yet kept in `folder`."""
    kept = {name: {line["digest"] for line in lines_of(folder, name)} for name in CLAIMS}
    return [job for job in jobs if digest_of(job) not in kept[job.claim]]


def run_claims(jobs: Sequence[Job], folder: Path, at_once: int, watch: Watch) -> None:
    """Measure what is not yet kept in `folder`; cells that measure time come last, one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    left = left_of(jobs, folder)
    together = [job for job in left if not job.settings.get(ALONE)]
    alone = [job for job in left if job.settings.get(ALONE)]
    done = len(jobs) - len(left)
    for some, n in ((together, at_once), (alone, 1)):
        with processes(n) as make:
            for index, (rows, seconds) in outcomes(make, timed_job, some, n) if some else ():
                _keep(folder, some[index], rows, seconds)
                done += 1
                watch(done, len(jobs), some[index].claim)


def run_with_progress(jobs: Sequence[Job], folder: Path, at_once: int, console: Console) -> None:
    """The same with a plan and a bar on a console. Raises `KeyboardInterrupt` when stopped."""
    all_of, left = (
        [(job.claim, job.task) for job in some] for some in (jobs, left_of(jobs, folder))
    )
    console.out(plan(jobs[0].size, all_of, left, at_once))
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("starting", total=len(jobs))

            def watch(done: int, total: int, name: str) -> None:
                bar.update(task, completed=done, total=total, description=name)

            run_claims(jobs, folder, at_once, watch)
    except (KeyboardInterrupt, Interrupted):
        console.out("stopped: everything so far is saved, and the same command goes on with it")
        raise KeyboardInterrupt from None


def has_figures(folder: Path) -> bool:
    """Whether anything is kept in a folder."""
    return any(lines_of(folder, name) for name in CLAIMS)


def _keep(folder: Path, job: Job, rows: Iterable[Row], seconds: float | None = None) -> None:
    line: Mapping[str, Any] = {
        "digest": digest_of(job),
        "size": job.size,
        "task": job.task,
        "seed": job.seed,
        "machine": machine(),
        "settings": {**job.settings, **({"task": job.task} if "task" in job.settings else {})},
        "rows": list(rows),
        "seconds": None if seconds is None else round(seconds, 2),
    }
    with (folder / f"{job.claim}.jsonl").open("ab+") as file:
        cut = file.tell() and file.seek(-1, SEEK_END) and file.read() != b"\n"
        file.write((b"\n" if cut else b"") + json.dumps(line).encode() + b"\n")


def digest_of(job: Job) -> str:
    """The digest of all that decides what a cell measures, its data and the code included."""
    from addnorm.lab.digest import code_digest, digest_of_file

    task = job.settings.get("task", MADE)
    facts = {
        "settings": {**job.settings, "task": job.task},
        "data": "" if task == MADE else digest_of_file(Path(task)),
        "seed": job.seed,
        "size": job.size,
        "code": [code_digest(), claim_digest(job.claim)],
        "machine": machine(),
    }
    return xxhash.xxh3_64(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def machine() -> str:
    """What decides the last bits besides: the processor, and the version of torch."""
    import torch

    return f"{processor()}; torch {torch.__version__}"


@cache
def claim_digest(name: str) -> str:
    """The digest of a claim's own module, and of those that all share."""
    here = Path(__file__).parent / "claims"
    total = xxhash.xxh3_64()
    for module in ("claim", "tasks", "learning", name):
        total.update((here / f"{module}.py").read_bytes())
    return total.hexdigest()


KEYS = {"digest", "size", "task", "seed", "machine", "settings", "rows"}
"""What a line has; the `seconds` that it took are missing in old ones."""

SIZES: Sequence[Size] = ("quick", "full", "night")


def lines_of(folder: Path, claim: str) -> list[Mapping[str, Any]]:
    """What is kept of a claim; a line that was cut short is passed over."""
    file = folder / f"{claim}.jsonl"
    found: list[Mapping[str, Any]] = []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            kept = json.loads(line)
        except ValueError:
            continue
        if isinstance(kept, dict) and kept.keys() >= KEYS and _are_rows(kept["rows"]):
            found.append(kept)
    return found


def _are_rows(rows: Any) -> bool:
    """Whether these are rows of panel, series, place and number."""
    kinds = (str, str, int | float | str, int | float)
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == len(kinds) and all(map(isinstance, row, kinds))
        for row in rows
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is kept of a claim at one size and on one task."""

    size: Size
    task: str
    results: Results
    n_seeds: int
    left: int
    """How many cells are not measured yet."""
    machines: Sequence[str]


def measured(folder: Path, claim: str) -> list[Measured]:
    """What is kept of a claim, by task: at the largest size that is complete, or else has some."""
    lines = lines_of(folder, claim)
    found: list[Measured] = []
    for task in dict.fromkeys(line["task"] for line in lines):
        sizes = [
            _measured(claim, size, task, some)
            for size in reversed(SIZES)
            if (some := [line for line in lines if (line["size"], line["task"]) == (size, task)])
        ]
        some = [one for one in sizes if one.n_seeds]
        found += [*(one for one in some if not one.left), *some][:1]
    return found


def _measured(claim: str, size: Size, task: str, lines: Sequence[Mapping[str, Any]]) -> Measured:
    """What lines of one size and task say; of a cell the latest counts."""
    cells = {json.dumps([one["settings"], one["seed"]], sort_keys=True): one for one in lines}
    wanted = [
        json.dumps([settings, seed], sort_keys=True)
        for settings in claim_called(claim).cells(size, task)
        for seed in range(1, SEEDS[size] + 1)
    ]
    here = [cells[where] for where in wanted if where in cells]
    return Measured(
        size=size,
        task=task,
        results=Results((one["seed"], Row(*row)) for one in here for row in one["rows"]),
        n_seeds=len({one["seed"] for one in here}),
        left=len(wanted) - len(here),
        machines=sorted({one["machine"] for one in here}),
    )
