"""`addnorm train --processes 2`: as one process, killed and resumed, refused."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.runs.tiny import write_recipe

from addnorm.errors import InputError
from addnorm.training.checkpoint import load_weights
from addnorm.training.parallel.launch import joined
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.world import OneProcess


def two(plan: str, save_every: int = 20) -> list[object]:
    """The options of two processes."""
    layers = ["--model.n_layers", 2] if plan == "pipeline" else []
    return ["--processes", 2, f"--parallel.{plan}", 2, "--train.save_every", save_every, *layers]


FOR_LONG = ["--train.steps", 5000, "--train.schedule", "constant"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), "language")


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "addnorm", *map(str, words)]


def figures(run: Path) -> bytes:
    return (run / "metrics.jsonl").read_bytes()


def killed(words: Sequence[str], run: Path, pid: Callable[[], int]) -> tuple[int, str, float]:
    """Start a training and kill a process after its first checkpoint; how and when all ended."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any((run / "checkpoints").glob("step-*")):
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(pid(), signal.SIGKILL)
    begin = time.monotonic()
    _, err = process.communicate()
    return process.returncode, err, time.monotonic() - begin


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("data", marks=pytest.mark.long),
        pytest.param("tensor", marks=pytest.mark.slow),
        pytest.param("pipeline", marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_process_is_killed_resumes_as_if_nothing_had_been(
    tmp_path: Path, recipe: Path, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run, temporary = (tmp_path / name for name in ("whole", "run", "temporary"))
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def rank_one() -> int:
        return int((run / "ranks/1.log").read_text().split("process ")[1].split()[0])

    code, err, seconds = killed(
        command("train", recipe, *two(plan), *FOR_LONG, "--out", run), run, rank_one
    )
    assert seconds < 30
    assert code == 1, err
    assert "rank 1 (process " in err
    assert "saved is everything up to step " in err
    assert f"addnorm train --resume {run} --processes 2" in err
    assert "was ended by SIGKILL after step " in err
    assert err.count("addnorm: ") == 1
    assert "Traceback" not in err
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
    assert saved >= 20
    last = ["--train.steps", saved + 20]
    resumed = command("train", "--resume", run, "--processes", 2, *last)
    assert subprocess.run(resumed, capture_output=True).returncode == 0
    straight = command("train", recipe, *two(plan), *FOR_LONG[2:], *last, "--out", whole)
    assert subprocess.run(straight, capture_output=True).returncode == 0
    assert figures(run) == figures(whole)
    ours, theirs = (load_weights(folder / "model.safetensors") for folder in (run, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    left = {path.name for path in temporary.iterdir()}
    assert not {name for name in left if not name.startswith("torchinductor_")}  # torch's cache


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "pipeline"])
def test_processes_whose_launcher_is_killed_stop_and_save(
    tmp_path: Path, recipe: Path, plan: str
) -> None:
    run = tmp_path / "run"
    words = command("train", recipe, *two(plan), *FOR_LONG, "--out", run)
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not any((run / "checkpoints").glob("step-*")):
        time.sleep(0.01)
    begin = time.monotonic()
    process.kill()
    _, err = process.communicate()  # once nobody has its end of the pipe
    assert time.monotonic() - begin < 30
    stopped = int(err.split("addnorm: stopped after step ")[1].split(",")[0])
    assert (run / f"checkpoints/step-{stopped:08}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["tensor", "pipeline", "shard"])
def test_a_training_that_begins_with_the_weights_of_a_folder_is_that_of_one_process(
    tmp_path: Path, run_of: Callable[[str], Path], plan: str
) -> None:
    """The weights of a second layer, which the folder has not, are drawn."""
    recipe = write_recipe(tmp_path, "language")
    recipe.write_text(recipe.read_text().replace('[tokenizer]\nkind = "char"', ""))
    words = ["train", recipe, "--train.start", run_of("language"), "--model.n_layers", 2]
    split = ["--parallel.shard", "true", *two("data")[:4]] if plan == "shard" else two(plan)[:4]
    for run, more in (("one", []), ("two", split)):
        done = subprocess.run(
            command(*words, *more, "--out", tmp_path / run), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "weights taken over; new: stack.blocks.1." in done.stderr
    check_alike(tmp_path / "one", tmp_path / "two")


def check_alike(run: Path, other: Path) -> None:
    """Two runs have the same figures, up to rounding."""
    ours, theirs = ([json.loads(line) for line in figures(r).splitlines()] for r in (run, other))
    assert any("valid_loss" in line for line in ours)
    for line, its in zip(ours, theirs, strict=True):
        numbers = {name: value for name, value in line.items() if isinstance(value, float)}
        assert {name: its[name] for name in numbers} == pytest.approx(numbers, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "tensor", "pipeline"])
def test_the_leading_process_is_named_too_and_one_process_resumes(
    tmp_path: Path, recipe: Path, plan: str
) -> None:
    run = tmp_path / "run"

    def leading() -> int:
        return json.loads((run / ".lock").read_text())["pid"]

    code, err, seconds = killed(
        command("train", recipe, *two(plan), *FOR_LONG, "--out", run), run, leading
    )
    assert seconds < 30
    assert code == 1
    assert err.count("addnorm: ") == 1
    assert "rank 0 (process " in err
    assert "was ended by SIGKILL after step " in err
    resumed = command("train", "--resume", run, f"--parallel.{plan}", 1, "--train.steps", 60)
    assert subprocess.run(resumed, capture_output=True).returncode == 0
    assert figures(run).count(b"\n") >= 60


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("tensor", marks=pytest.mark.long),
        pytest.param("pipeline", marks=pytest.mark.slow),
    ],
)
def test_validation_that_writes_texts_gives_the_scores_of_one_process(
    tmp_path: Path, plan: str
) -> None:
    translation = write_recipe(tmp_path, "translation")
    for run, words in (("one", []), ("two", two(plan)[:4])):
        done = subprocess.run(
            command("train", translation, *words, "--out", tmp_path / run), capture_output=True
        )
        assert done.returncode == 0, done.stderr
    assert b"valid_bleu" in figures(tmp_path / "one")
    check_alike(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_mistake_is_told_once_and_leaves_no_folder(tmp_path: Path, recipe: Path) -> None:
    run = tmp_path / "run"
    words = command(
        "train", recipe, *two("data"), "--out", run, "--data.train", tmp_path / "none.txt"
    )
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("none.txt") == 1
    assert not run.exists()


@pytest.mark.slow
def test_two_machines_train_as_one(tmp_path: Path, recipe: Path) -> None:
    """Two agents of torchrun, each with a process; the second writes nothing but its log."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    agent = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    agent += ["--log-dir", os.devnull]
    agent += ["--rdzv-id", "two", "--rdzv-endpoint", endpoint]
    words = ["train", recipe, "--parallel.data", "2", "--out", tmp_path / "two"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *agent]
    agents = [subprocess.Popen([*launcher, "-m", "addnorm", *map(str, words)]) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    one = command("train", recipe, *two("data")[:4], "--out", tmp_path / "one")
    assert subprocess.run(one, capture_output=True).returncode == 0
    assert figures(tmp_path / "two") == figures(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes as Linux does")
def test_a_run_killed_at_any_moment_ends_as_one_left_alone(tmp_path: Path, recipe: Path) -> None:
    """Twenty times, also while it starts or saves, as it always does: any process."""
    whole = tmp_path / "whole"
    rng = Random(0)
    plan = [*two("data", save_every=1), "--train.steps", 100, "--parallel.shard", "true"]
    straight = command("train", recipe, *plan, "--out", whole)
    begin = time.monotonic()
    assert subprocess.run(straight, capture_output=True).returncode == 0
    most = (time.monotonic() - begin) / 2
    kills = 0
    while kills < 20:
        run = tmp_path / f"run{kills}"
        words = command("train", recipe, *plan, "--resume", "--out", run)
        while kills < 20 and killed_after(rng.uniform(0, most), words, rng):
            kills += 1
        assert subprocess.run(words, capture_output=True).returncode == 0
        assert figures(run) == figures(whole)
        ours, theirs = (load_weights(folder / "model.safetensors") for folder in (run, whole))
        assert all((ours[name] == theirs[name]).all() for name in theirs)


def killed_after(seconds: float, words: Sequence[str], rng: Random) -> bool:
    """Start a training and kill any of its processes, unless it is finished before."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:
        time.sleep(0.01)
    time.sleep(seconds)
    pids = children.read_text().split() if process.poll() is None else []
    begin = time.monotonic()
    if pids:
        with suppress(ProcessLookupError):  # just ended
            os.kill(int(rng.choice(pids)), signal.SIGKILL)
    _, err = process.communicate()
    assert time.monotonic() - begin < 30
    was_killed = process.returncode != 0
    assert process.returncode == was_killed <= bool(pids), err
    assert "Traceback" not in err
    assert err.count("addnorm: ") == was_killed
    named = f" on {socket.gethostname()}) was ended by SIGKILL after step "
    assert (named in err) == was_killed, err
    return was_killed


def test_one_process_is_alone() -> None:
    with joined(ParallelTrainingConfig()) as world:
        assert isinstance(world, OneProcess)
        assert world.leads


def test_a_plan_for_more_processes_is_refused() -> None:
    alone = joined(ParallelTrainingConfig(pipeline=2))
    with pytest.raises(InputError, match="is a plan for 2 processes"), alone:
        raise AssertionError
