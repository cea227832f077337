"""Measuring the claims: each cell runs with each seed in a process, and is saved as one line."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from os import SEEK_END
from pathlib import Path

import torch
import xxhash
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from addnorm.atomic import make_folder
from addnorm.errors import InputError
from addnorm.lab.claims import CLAIMS, claim_called, claims_called
from addnorm.lab.claims.claim import (
    SEEDS,
    Both,
    Claim,
    Finding,
    Results,
    Row,
    Settings,
    Size,
)
from addnorm.lab.claims.tasks import GENERATED
from addnorm.lab.digest import code_digest, digest_of_file
from addnorm.lab.executor import Watch, outcomes, processes, progress_bar
from addnorm.machine import processor

NATURAL = ("tinyshakespeare/input.txt", "multi30k/train.de.gz")
"""Texts of natural language below the root of the data: plays, and German image captions."""

ALONE = "alone"
"""The mark of a cell that measures time, so that it must run alone."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell of a claim with one seed."""

    claim: str
    size: Size
    task: str
    settings: Settings
    seed: int


def jobs_of(names: Sequence[str], size: Size, root: Path | None = None) -> list[Job]:
    """Return all cells of some claims, seed by seed, also on the texts below `root` if given.

    Raises `InputError` for a claim that does not exist, or if `root` has none of the data.
    """
    files = [] if root is None else natural_files(root)
    jobs: list[Job] = []
    for name in claims_called(names):
        claim = claim_called(name)
        tasks = [GENERATED, *(map(str, files) if claim.natural else ())]
        jobs += [
            Job(claim=name, size=size, task=task_name(task), settings=settings, seed=seed)
            for task in tasks
            for seed in range(1, SEEDS[size] + 1)
            for settings in claim.cells(size, task)
        ]
    return jobs


def natural_files(root: Path) -> list[Path]:
    """The natural-language files below `root`. Raises `InputError` if there are none."""
    files = [root / name for name in NATURAL]
    if not any(file.is_file() for file in files):
        raise InputError(f"`root`: neither {files[0]} nor {files[1]} is there")
    return [file for file in files if file.is_file()]


def task_name(task: str) -> str:
    """Return a task's name in result files: the last folder in the path of its text."""
    return task if task == GENERATED else Path(task).parent.name


def run_job(job: Job) -> tuple[list[Row], float]:
    """Measure a cell with one thread; return its rows and the seconds it took."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    rows = list(claim_called(job.claim).measure(job.settings, job.seed))
    return rows, time.perf_counter() - begun


def left_of(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Return the cells that have no figures in `folder` yet."""
    digests = {name: {line.digest for line in lines_of(folder, name)} for name in CLAIMS}
    return [job for job in jobs if digest_of(job) not in digests[job.claim]]


def run_claims(jobs: Sequence[Job], folder: Path, at_once: int, watch: Watch) -> None:
    """Measure the cells without figures in `folder`; those that measure time run last, alone."""
    make_folder(folder)
    left = left_of(jobs, folder)
    together = [job for job in left if not job.settings.get(ALONE)]
    alone = [job for job in left if job.settings.get(ALONE)]
    done = len(jobs) - len(left)
    for part, n in ((together, at_once), (alone, 1)):
        with processes(n) as make:
            for index, (rows, seconds) in outcomes(make, run_job, part, n) if part else ():
                _save(folder, part[index], rows, seconds)
                done += 1
                watch(done, len(jobs), part[index].claim)


def run_with_progress(jobs: Sequence[Job], folder: Path, at_once: int, console: Console) -> None:
    """Run claims, with a plan and a progress bar on a console.

    Raises `KeyboardInterrupt` when stopped.
    """
    cells = [(job.claim, job.task) for job in jobs]
    left = [(job.claim, job.task) for job in left_of(jobs, folder)]
    console.out(plan(jobs[0].size, cells, left, at_once))
    with progress_bar(console, len(jobs)) as watch:
        run_claims(jobs, folder, at_once, watch)


def has_figures(folder: Path) -> bool:
    """Return whether a folder has figures of any claim."""
    return any(lines_of(folder, name) for name in CLAIMS)


def _save(folder: Path, job: Job, rows: Iterable[Row], seconds: float | None = None) -> None:
    line = Line(
        digest=digest_of(job),
        size=job.size,
        task=job.task,
        seed=job.seed,
        machine=machine(),
        settings={**job.settings, **({"task": job.task} if "task" in job.settings else {})},
        rows=list(rows),
        seconds=None if seconds is None else round(seconds, 2),
    )
    with (folder / f"{job.claim}.jsonl").open("ab+") as file:
        cut = file.tell() and file.seek(-1, SEEK_END) and file.read() != b"\n"
        file.write((b"\n" if cut else b"") + json.dumps(asdict(line)).encode() + b"\n")


def digest_of(job: Job) -> str:
    """The digest of everything that a cell's result depends on, including data and code."""
    task = job.settings.get("task", GENERATED)
    facts = {
        "settings": {**job.settings, "task": job.task},
        "data": "" if task == GENERATED else digest_of_file(Path(task)),
        "seed": job.seed,
        "size": job.size,
        "code": [code_digest(), claim_digest(job.claim)],
        "machine": machine(),
    }
    return xxhash.xxh3_64(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def machine() -> str:
    """The processor and torch version, on which the last bits of results depend."""
    return f"{processor()}; torch {torch.__version__}"


@cache
def claim_digest(name: str) -> str:
    """The digest of a claim's module and of the modules shared by all claims."""
    here = Path(__file__).parent
    total = xxhash.xxh3_64()
    for module in ("claim", "tasks", "learning", name):
        total.update((here / f"{module}.py").read_bytes())
    return total.hexdigest()


SIZES: Sequence[Size] = ("quick", "full", "night")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line in a claim's file: the figures of a cell with one seed."""

    digest: str
    size: Size
    task: str
    seed: int
    machine: str
    settings: Settings
    rows: list[Row]
    seconds: float | None = None
    """The time that the cell took; old lines lack it."""


LINE = TypeAdapter(Line)


def lines_of(folder: Path, claim: str) -> list[Line]:
    """Return the intact lines of a claim's file."""
    file = folder / f"{claim}.jsonl"
    lines: list[Line] = []
    for text in file.read_bytes().splitlines() if file.is_file() else ():
        with suppress(ValidationError):
            lines.append(LINE.validate_json(text, strict=True))
    return lines


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of a claim at one size and on one task."""

    size: Size
    task: str
    results: Results
    n_seeds: int
    left: int
    """The number of cells that are not measured yet."""
    machines: Sequence[str]


def measured(folder: Path, claim: str) -> list[Measured]:
    """Return a claim's figures by task, for the largest complete size or else the largest."""
    lines = lines_of(folder, claim)
    by_task: list[Measured] = []
    for task in dict.fromkeys(line.task for line in lines):
        sizes = [
            _measured(claim, size, task, of_size)
            for size in reversed(SIZES)
            if (of_size := [line for line in lines if (line.size, line.task) == (size, task)])
        ]
        sizes = [size for size in sizes if size.n_seeds]
        by_task += [*(size for size in sizes if not size.left), *sizes][:1]
    return by_task


LEFT: Both = ("{n} cells are not measured yet.", "还有 {n} 个格子尚未测量。")


def findings_of(claim: Claim, figures: Measured) -> Sequence[Finding]:
    """Return the parts of the verdict; while cells are missing, only an undecided one."""
    if figures.left:
        english, chinese = (text.format(n=figures.left) for text in LEFT)
        return [Finding("undecided", (english, chinese))]
    return claim.judge(figures.results)


def _measured(claim: str, size: Size, task: str, lines: Sequence[Line]) -> Measured:
    """Return the figures of one size and task; for each cell, its latest line counts."""
    cells = {json.dumps([line.settings, line.seed], sort_keys=True): line for line in lines}
    keys = [
        json.dumps([settings, seed], sort_keys=True)
        for settings in claim_called(claim).cells(size, task)
        for seed in range(1, SEEDS[size] + 1)
    ]
    here = [cells[key] for key in keys if key in cells]
    return Measured(
        size=size,
        task=task,
        results=Results((line.seed, row) for line in here for row in line.rows),
        n_seeds=len({line.seed for line in here}),
        left=len(keys) - len(here),
        machines=sorted({line.machine for line in here}),
    )


HOURS: Mapping[str, Mapping[Size, float]] = {
    "extrapolation": {"quick": 0.03, "full": 0.42, "night": 0.83},
    "word_order": {"quick": 0.02, "full": 0.12, "night": 0.41},
    "warmup": {"quick": 0.08, "full": 1.06, "night": 6.32},
    "norms": {"quick": 0.06, "full": 0.49, "night": 0.88},
    "score_scale": {"quick": 0.02, "full": 0.36, "night": 1.23},
    "heads": {"quick": 0.03, "full": 0.32, "night": 0.63},
    "distance": {"quick": 0.04, "full": 1.25, "night": 2.85},
    "residuals": {"quick": 0.02, "full": 0.22, "night": 1.11},
    "rmsnorm": {"quick": 0.01, "full": 0.14, "night": 0.30},
    "cache": {"quick": 0.01, "full": 0.35, "night": 0.37},
}
"""The hours of one core that all seeds of a claim take on one kind of data.

For `full`, a few steps of every cell were timed, and the sum was scaled to the time that the claims
took; `quick` and `night` follow from these by steps, layers and lengths.
"""


def plan(
    size: Size, cells: Sequence[tuple[str, str]], left: Sequence[tuple[str, str]], n: int
) -> str:
    """Return the number of cells still to measure, and the estimated time.

    `cells` has the claim and the data of each cell; `n` processes measure them.
    """
    done = len(cells) - len(left)
    number = f"{len(cells):,} cell{'s' if len(cells) > 1 else ''}"
    number += f", {done:,} of them measured already" if done else ""
    if not left:
        return f"{number}: nothing is left to measure"
    of_all, of_left = Counter(cells), Counter(left)
    hours = sum(HOURS[key[0]][size] * of_left[key] / of_all[key] for key in of_left)
    busy = f", {_time(hours)} of one core" if n > 1 else ""
    return f"{number}: about {_time(hours / n)} with {n} at once{busy}"


def _time(hours: float) -> str:
    minutes = max(1, round(60 * hours))
    if hours >= 1.5:
        return f"{hours:.1f} hours"
    return f"{minutes} minute{'s' if minutes > 1 else ''}"
