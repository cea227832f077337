"""Two processes train as one: losses, norms and weights after twenty steps; planted faults show."""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
from tests.training import tiny
from tests.training.parallel import cases
from tests.training.parallel.conftest import started

from addnorm.training.checkpoint import load_checkpoint, load_weights
from addnorm.training.parallel.world import OneProcess

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("types_unchecked"),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have trained every case by every plan."""
    folder = tmp_path_factory.mktemp("two")
    done = started("cases", folder, 2)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which this process trains cases alone."""
    return tmp_path_factory.mktemp("one")


def alone(folder: Path, case: str) -> Path:
    """The folder of a case that one process has trained."""
    if not (folder / case).exists():
        cases.run(folder / case, OneProcess(), **cases.CASES[case])
    return folder / case


def check_saved_again(folder: Path) -> None:
    """What other processes have saved again is equal to the bit."""
    saved, again = (
        load_checkpoint(f / "checkpoints/step-00000010")[0] for f in (folder, folder / "again")
    )
    for group in saved.keys() | again.keys():
        tiny.same(saved[group], again[group])


def check_begins(one: Path, several: Path, plans: Sequence[str]) -> None:
    """A model begins with the weights of one process to the bit."""
    cases.begins(one / "begins", OneProcess())
    for plan in plans:
        first, theirs = (f / "begins" / of for f, of in ((one, ""), (several, plan)))
        tiny.same(*(load_weights(f / "first.safetensors") for f in (first, theirs)))


def difference_of_steps(a: Path, b: Path) -> float:
    """The largest relative difference of losses and norms in the steps that both have."""
    lines = [*zip(tiny.journal(a), tiny.journal(b), strict=False)]
    assert lines
    assert all(ours.keys() == theirs.keys() for ours, theirs in lines)
    return max(
        abs(value - theirs[name]) / max(1.0, abs(value))
        for ours, theirs in lines
        for name, value in ours.items()
    )


def largest_difference(a: Path, b: Path) -> float:
    """The largest relative difference of losses, norms and final weights of two runs."""
    ours, theirs = (load_weights(folder / "final.safetensors") for folder in (a, b))
    if ours.keys() != theirs.keys() or len(tiny.journal(a)) != len(tiny.journal(b)):
        return inf
    weights = [(weight - theirs[name]).abs().max().item() for name, weight in ours.items()]
    return max([difference_of_steps(a, b), *weights])


@pytest.mark.parametrize(
    ("plan", "case"), [(plan, case) for plan in cases.PLANS for case in cases.cases_of(plan, 2)]
)
def test_two_processes_train_as_one(two: Path, one: Path, case: str, plan: str) -> None:
    assert largest_difference(alone(one, case), two / plan / case) < 1e-5


def test_a_model_begins_with_the_weights_of_one_process_to_the_bit(two: Path, one: Path) -> None:
    check_begins(one, two, [*cases.PLANS])


@pytest.mark.slow
def test_no_process_has_a_whole_model_at_any_time(tmp_path: Path) -> None:
    """While it is built, trained, validated and written."""

    def peaks(plan: str, n: int) -> list[int]:
        folder = tmp_path / plan
        folder.mkdir()
        done = started("peaks", folder, n, plan)
        assert done.returncode == 0, done.stderr
        return [int((folder / f"rank{rank}").read_text()) for rank in range(n)]

    (alone,) = peaks("data", 1)
    for plan in ("tensor", "shard", "pipeline"):
        assert max(peaks(plan, 2)) <= 0.65 * alone, plan


def test_every_schedule_trains_as_one_process(two: Path, one: Path) -> None:
    cases.run(one / "deep", OneProcess(), **cases.DEEP)
    for schedule in cases.SCHEDULES:
        assert largest_difference(one / "deep", two / "schedules" / schedule) < 1e-5


@pytest.mark.parametrize("fault", cases.FAULTS)
def test_a_planted_fault_shows(two: Path, one: Path, fault: str) -> None:
    _, plan, case = cases.FAULTS[fault]
    assert difference_of_steps(alone(one, case), two / "faults" / fault) > 1e-4
    assert largest_difference(alone(one, case), two / plan / case) < 1e-5


@pytest.mark.parametrize("plan", ["shard", "tensor", "pipeline"])
def test_a_part_of_the_weights_and_states_is_held(two: Path, plan: str) -> None:
    whole, part = (json.loads((two / p / "decoder/bytes.json").read_text()) for p in ("data", plan))
    assert part <= 0.55 * whole


@pytest.mark.parametrize("plan", cases.PLANS)
def test_where_one_process_has_a_loss_that_is_nan_none_makes_the_step(two: Path, plan: str) -> None:
    for rank in (0, 1):
        answer = json.loads((two / f"not_finite/{plan}/rank{rank}.json").read_text())
        assert answer["unchanged"]
        assert answer["step"] == 3
        said = answer["said"]
        assert said.startswith("step 4: the loss is ")
        assert " and on rank 1 (process " in said
        assert "not finite is that of embed.tokens.weight" in said


def test_all_stop_where_one_is_asked_to(two: Path) -> None:
    assert [json.loads((two / f"stopped/rank{rank}.json").read_text()) for rank in (0, 1)] == [7, 7]
    assert (two / "stopped/checkpoints/step-00000007").exists()


def test_only_the_leading_process_writes(two: Path) -> None:
    assert len(tiny.journal(two / "data/decoder")) == cases.STEPS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("n", "plans"), [(4, [*cases.PLANS, *cases.PAIRS]), (8, [*cases.TRIPLES])])
def test_more_processes_train_as_one(tmp_path: Path, one: Path, n: int, plans: list[str]) -> None:
    done = started("cases", tmp_path, n)
    assert done.returncode == 0, done.stderr
    differences = {
        (plan, case): largest_difference(alone(one, case), tmp_path / plan / case)
        for plan in plans
        for case in cases.cases_of(plan, n)
    }
    assert not {cell: by for cell, by in differences.items() if not by < 1e-5}
    if n == 4:
        for first, then in cases.RESUMED_BY:
            check_saved_again(tmp_path / "resumed" / f"{first}_{then}")
        check_begins(one, tmp_path, plans)


def test_a_run_resumes_by_another_plan(two: Path, tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    cases.run(straight, OneProcess(), **cases.RESUMED)
    alone = ("shard_one", "tensor_one", "context_one", "pipeline_one")
    for name in alone:
        cases.save_again(two / "resumed" / name, OneProcess())
        cases.run(two / "resumed" / name, OneProcess(), **cases.RESUMED)
    others = [f"{first}_{then}" for first, then in cases.RESUMED_BY if then in cases.PLANS]
    for name in (*others, *alone):
        assert largest_difference(straight, two / "resumed" / name) < 1e-5
        check_saved_again(two / "resumed" / name)


def test_checkpoints_have_no_trace_of_the_plan(two: Path, one: Path) -> None:
    """Read, a checkpoint in pieces is that of one process: the same names, shapes and numbers."""
    step = "checkpoints/step-00000020"
    theirs, _ = load_checkpoint(alone(one, "ema") / step)
    for plan, fields in cases.PLANS.items():
        file = two / plan / "ema" / step / "model-00002-of-00002.safetensors"
        assert file.exists() == (fields.keys() <= {"shard", "tensor", "pipeline"} and fields != {})
        ours, _ = load_checkpoint(file.parent)
        assert ours.keys() == theirs.keys()
        for name, group in theirs.items():
            shapes = {key: tensor.shape for key, tensor in group.items()}
            assert {key: tensor.shape for key, tensor in ours[name].items()} == shapes
            largest = max((ours[name][key] - group[key]).abs().max().item() for key in group)
            assert largest < 1e-5, (plan, name)


@pytest.mark.parametrize("plan", ["shard", "tensor", "pipeline"])
def test_each_process_saves_its_part_and_each_value_once(two: Path, plan: str) -> None:
    def sizes(plan: str, part: str) -> list[int]:
        folder = two / plan / "decoder/checkpoints/step-00000020"
        files = sorted(folder.glob(f"[mo]*{part}.safetensors"))
        return [sum(tensor.nbytes for tensor in load_weights(file).values()) for file in files]

    whole = sum(sizes("data", ""))
    parts = [sum(sizes(plan, f"-{rank}-of-00002")) for rank in ("00001", "00002")]
    assert sum(parts) == whole
    assert max(parts) <= 0.6 * whole
