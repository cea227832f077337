"""Running claims: every cell once, whatever happens in between, and only what is missing."""

import gzip
import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from addnorm.errors import InputError
from addnorm.lab.claims import CLAIMS, claim_called, laboratory
from addnorm.lab.claims.claim import SEEDS, Size
from addnorm.lab.claims.laboratory import (
    HOURS,
    Job,
    digest_of,
    has_figures,
    jobs_of,
    lines_of,
    measured,
    plan,
    run_claims,
    run_job,
    run_with_progress,
)

REACH = Job(claim="distance", size="quick", task="chain", settings={"reach": "convolution"}, seed=1)


def nobody(done: int, total: int, name: str) -> None:
    pass


def test_all_is_every_claim_with_every_seed() -> None:
    jobs = jobs_of(["all"], "quick")
    assert {job.claim for job in jobs} == {*CLAIMS}
    assert {job.seed for job in jobs} == {*range(1, SEEDS["quick"] + 1)}
    assert {job.task for job in jobs} == {"chain"}
    assert len({digest_of(job) for job in jobs}) == len(jobs)


def test_natural_language_is_added_where_a_claim_has_it(tmp_path: Path) -> None:
    file = tmp_path / "tinyshakespeare" / "input.txt"
    with pytest.raises(InputError, match=r"neither .*input\.txt nor .*train\.de\.gz"):
        jobs_of(["heads"], "quick", tmp_path)
    file.parent.mkdir()
    file.write_text("to be or not to be, that is the question " * 40, "utf-8")
    jobs = jobs_of(["all"], "quick", tmp_path)
    natural = {job.claim for job in jobs if job.task == "tinyshakespeare"}
    assert natural == {name for name in CLAIMS if claim_called(name).natural}
    assert len(natural) == 6
    captions = tmp_path / "multi30k" / "train.de.gz"
    captions.parent.mkdir()
    captions.write_bytes(gzip.compress(b"zwei Hunde im Schnee\n" * 40))
    both = {job.task for job in jobs_of(["heads"], "quick", tmp_path)}
    assert both == {"chain", "tinyshakespeare", "multi30k"}
    [one] = [job for job in jobs if job.task != "chain" and job.settings.get("heads") == 1][:1]
    before = digest_of(one)
    file.write_text("another text " * 100, "utf-8")
    assert digest_of(one) != before


def test_jobs_of_rejects_an_unknown_claim() -> None:
    with pytest.raises(InputError, match="Did you mean 'heads'"):
        jobs_of(["head"], "quick")


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"size": "full"}, {"settings": {"reach": "other"}}], ids=str
)
def test_inputs_of_a_cell_change_its_digest(change: dict[str, Any]) -> None:
    assert digest_of(replace(REACH, **change)) != digest_of(REACH)
    assert digest_of(replace(REACH)) == digest_of(REACH)


def test_rows_are_plain_and_equal_again() -> None:
    assert run_job(REACH)[0] == [("reach", "convolution", 2, 5.0)]


@pytest.mark.long
def test_a_second_run_measures_missing_cells_only(tmp_path: Path) -> None:
    jobs = [replace(REACH, seed=seed) for seed in (1, 2)]
    run_claims(jobs, tmp_path, 1, nobody)
    kept = (tmp_path / "distance.jsonl").read_text("utf-8")
    assert [line.seed for line in lines_of(tmp_path, "distance")] == [1, 2]
    told: list[tuple[int, int, str]] = []
    run_claims([*jobs, replace(REACH, seed=3)], tmp_path, 1, lambda *one: told.append(one))
    assert told == [(3, 3, "distance")]
    assert (tmp_path / "distance.jsonl").read_text("utf-8").startswith(kept)


@pytest.mark.long
def test_a_line_that_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    jobs = [replace(REACH, seed=seed) for seed in (1, 2)]
    run_claims(jobs, tmp_path, 1, nobody)
    file = tmp_path / "distance.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    run_claims(jobs, tmp_path, 1, nobody)
    assert [line.seed for line in lines_of(tmp_path, "distance")] == [1, 2]


def test_cells_that_measure_time_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def pretend(make: Any, work: Any, jobs: Any, n: int) -> list:
        made.append((len(jobs), n))
        return [(i, ([], 0.5)) for i in range(len(jobs))]

    monkeypatch.setattr(laboratory, "outcomes", pretend)
    jobs = jobs_of(["rmsnorm"], "quick")
    run_claims(jobs, tmp_path, 2, nobody)
    alone = sum(bool(job.settings.get("alone")) for job in jobs)
    assert made == [(len(jobs) - alone, 2), (alone, 1)]


def keep(folder: Path, jobs: list[Job], value: float) -> None:
    for job in jobs:
        laboratory._save(folder, job, [("loss", "loss", job.settings.get("norm", "x"), value)])


def test_figures_are_those_of_the_largest_complete_size_and_the_latest(tmp_path: Path) -> None:
    assert measured(tmp_path, "rmsnorm") == []
    assert not has_figures(tmp_path)
    some, *others = jobs_of(["rmsnorm"], "full")
    keep(tmp_path, [some], 2.0)
    [one] = measured(tmp_path, "rmsnorm")
    assert (one.size, one.n_seeds, one.left) == ("full", 1, len(others))
    keep(tmp_path, jobs_of(["rmsnorm"], "quick"), 1.0)
    [one] = measured(tmp_path, "rmsnorm")
    assert (one.size, one.task, one.n_seeds, one.left) == ("quick", "chain", 3, 0)
    keep(tmp_path, [some, *others], 3.0)
    [one] = measured(tmp_path, "rmsnorm")
    assert (one.size, one.n_seeds, one.left) == ("full", 5, 0)
    assert one.results.mean("loss", "loss", "rmsnorm").mean == 3.0


def test_a_file_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "tinyshakespeare" / "input.txt"
    file.parent.mkdir()
    file.write_text("to be or not to be " * 40, "utf-8")
    keep(tmp_path, jobs_of(["rmsnorm"], "quick", tmp_path), 1.0)
    text = (tmp_path / "rmsnorm.jsonl").read_text("utf-8")
    assert str(tmp_path) not in text
    assert [one.task for one in measured(tmp_path, "rmsnorm")] == ["chain", "tinyshakespeare"]
    assert all(one.left == 0 for one in measured(tmp_path, "rmsnorm"))
    assert json.loads(text.splitlines()[0])["machine"] == laboratory.machine()


def test_a_stop_prints_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(laboratory, "run_claims", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_with_progress([REACH], tmp_path, 1, console)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert text.startswith("1 cell: about 2 minutes with 1 at once")
    assert text.count("the same command resumes") == 1


@pytest.mark.parametrize("line", [b"{}", b"5", b"\xff\xfe", b'{"digest": "a"}'])
def test_invalid_lines_are_skipped(line: bytes, tmp_path: Path) -> None:
    keep(tmp_path, jobs_of(["rmsnorm"], "quick"), 1.0)
    file = tmp_path / "rmsnorm.jsonl"
    file.write_bytes(line + b"\n" + file.read_bytes())
    [one] = measured(tmp_path, "rmsnorm")
    assert one.left == 0


def test_a_claim_that_is_named_twice_is_measured_once() -> None:
    assert jobs_of(["heads", "heads"], "quick") == jobs_of(["heads"], "quick")


def test_each_kind_of_data_is_complete_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "tinyshakespeare" / "input.txt"
    file.parent.mkdir()
    file.write_text("to be or not to be " * 40, "utf-8")
    jobs = jobs_of(["rmsnorm"], "quick", tmp_path)
    keep(tmp_path, jobs[:-1], 1.0)
    assert [one.left for one in measured(tmp_path, "rmsnorm")] == [0, 1]


@pytest.mark.parametrize("rows", [[[1, 2]], "rows", [["a", "b", 1]], [["a", "b", 1, "many"]]])
def test_lines_of_another_shape_are_skipped(rows: object, tmp_path: Path) -> None:
    line = {"digest": "", "size": "quick", "task": "chain", "seed": 1, "machine": "m"}
    line |= {"settings": {}, "rows": rows}
    (tmp_path / "cache.jsonl").write_text(json.dumps(line) + "\n")
    assert lines_of(tmp_path, "cache") == []
    (tmp_path / "cache.jsonl").write_text(json.dumps(line | {"rows": [["a", "b", 1, 2.0]]}) + "\n")
    assert len(lines_of(tmp_path, "cache")) == 1
    assert measured(tmp_path, "cache") == [], "a cell that is none any more is not measured"


def test_a_line_has_the_seconds_that_its_cell_took(tmp_path: Path) -> None:
    rows, seconds = run_job(REACH)
    assert 0 < seconds < 600
    laboratory._save(tmp_path, REACH, rows, seconds)
    [line] = lines_of(tmp_path, "distance")
    assert line.rows == rows
    assert line.seconds == round(seconds, 2)
    old = {name: value for name, value in asdict(line).items() if name != "seconds"}
    (tmp_path / "distance.jsonl").write_text(json.dumps(old) + "\n", "utf-8")
    assert len(lines_of(tmp_path, "distance")) == 1
    assert measured(tmp_path, "distance")[0].n_seeds == 1


def test_the_plan_is_printed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    seen: list[str] = []
    monkeypatch.setattr(
        laboratory,
        "run_claims",
        lambda *_: seen.append(console.file.getvalue()),  # pyright: ignore[reportAttributeAccessIssue]
    )
    jobs = jobs_of(["distance"], "quick")
    keep(tmp_path, jobs[:7], 1.0)
    laboratory.run_with_progress(jobs, tmp_path, 2, console)
    assert seen[0].startswith(
        f"{len(jobs)} cells, 7 of them measured already: about 1 minute with 2 at once"
    )


GUIDE = {"quick": 10 / 60, "full": 2.5, "night": 8.0}
"""The hours on two cores that the guide and the command tell."""


def test_every_claim_has_its_hours() -> None:
    assert tuple(HOURS) == CLAIMS
    assert all(tuple(hours) == get_args(Size) for hours in HOURS.values())


@pytest.mark.parametrize("size", get_args(Size))
def test_two_cores_take_no_longer_than_documented(size: Size) -> None:
    assert GUIDE[size] / 2 < sum(hours[size] for hours in HOURS.values()) / 2 <= GUIDE[size]


def test_measured_cells_cost_nothing() -> None:
    cells = [("warmup", "chain")] * 4 + [("distance", "chain")] * 5
    assert plan("full", cells, cells, 1) == "9 cells: about 2.3 hours with 1 at once"
    assert plan("full", cells, cells[:2], 2) == (
        "9 cells, 7 of them measured already: about 16 minutes with 2 at once, "
        "32 minutes of one core"
    )
    assert plan("full", cells, [], 2).endswith(
        "9 of them measured already: nothing is left to measure"
    )


def test_each_kind_of_data_costs_as_much_again() -> None:
    one = [("heads", "chain")] * 3
    both = [*one, *[("heads", "plays")] * 3]
    assert plan("night", one, one, 1).endswith("38 minutes with 1 at once")
    assert plan("night", both, both, 1).endswith("76 minutes with 1 at once")
