"""`--processes` of `generate` and `evaluate`: what one process writes; what cannot is refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands import messages

from addnorm.models.weights import n_bytes, weights_of
from addnorm.runs.opening import open_model
from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.tensor import split_model

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]
NOTHING: Any = None


class Unconnected(Group):
    """Two processes of which only one is here, for what they do not compute together."""

    sum = largest = all = NOTHING


def in_two(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "addnorm", *map(str, words), "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("language", ["--seed", 3, "--max-new-tokens", 20]),
        ("translation", ["--beams", 3]),
        ("translation", ["--beams", 3, "--parallel", "pipeline"]),
    ],
)
def test_two_processes_write_what_one_does(
    task: str, words: list[object], run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    lines = "the question\n\nto be\n" if task == "language" else "a red cat\n\na dog\n"
    (tmp_path / "in.txt").write_text(lines)
    command = ("generate", run_of(task), tmp_path / "in.txt", *words)
    done = in_two(*command)
    assert (done.returncode, done.stdout) == addnorm(*command)[:2], done.stderr
    assert messages(done.stderr) == []


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("plan", ["tensor", "pipeline"])
def test_two_processes_score_as_one_does(
    plan: str, run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    command = ("evaluate", run_of("translation"), "--split", "valid", "--predictions")
    done = in_two(*command, tmp_path / "two.txt", "--parallel", plan)
    assert done.returncode == 0, done.stderr
    figures, expected = json.loads(done.stdout), json.loads(addnorm(*command, tmp_path / "one")[1])
    assert figures.keys() == expected.keys()
    assert figures["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert figures["bleu"] == pytest.approx(expected["bleu"])
    assert (tmp_path / "two.txt").read_text() == (tmp_path / "one").read_text()


@pytest.mark.long
def test_a_mistake_that_all_find_is_told_once(run_of: RunOf) -> None:
    done = in_two("generate", run_of("language"), "--prompt", "x", "--chat")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "chat template" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes as Linux does")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("plan", ["tensor", "pipeline"])
def test_a_process_that_is_killed_is_named(
    plan: str, rank: int, run_of: RunOf, tmp_path: Path
) -> None:
    """While a long text is read; the other one ends without a traceback."""
    (tmp_path / "in.txt").write_text("a red cat\n" * 20_000)
    words = ["generate", run_of("translation"), tmp_path / "in.txt", "--parallel", plan]
    command = [sys.executable, "-m", "addnorm", *map(str, words), "--processes", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(next(pid for pid in map(int, children) if rank_of(pid) == rank), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith(f"addnorm: rank {rank} (process ")
    assert err.endswith(") was ended by SIGKILL\n")
    assert err.count("\n") == 1


def rank_of(pid: int) -> int | None:
    """The rank of a process that torchrun has started."""
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return next((int(word[5:]) for word in words if word.startswith("RANK=")), None)


def test_as_many_processes_are_given_as_torchrun_has_started(
    run_of: RunOf, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("language")
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for words in ([], ["--processes", 3]):
        code, out, err = addnorm("generate", run, "--prompt", "x", *words)
        assert (code, out) == (2, "")
        assert err == (
            "addnorm: torchrun has started 2 processes: give --processes 2, or start one\n"
        )


def test_a_process_has_half_of_a_model(run_of: RunOf) -> None:
    folder = run_of("translation")
    whole = weights_of(open_model(folder).model)
    parts = [
        open_model(folder, split=lambda m, r=rank: split_model(m, Unconnected(r, 2)).parameters)
        for rank in (0, 1)
    ]
    layouts = split_model(open_model(folder).model, Unconnected(0, 2)).parameters
    for part in parts:
        assert not part.model.training
        assert n_bytes(weights_of(part.model).values()) <= 0.6 * n_bytes(whole.values())
    for name, weight in whole.items():
        pieces = [weights_of(part.model)[name] for part in parts]
        piece = layouts.get(name)
        joined = pieces[0]
        if piece is not None and piece.units > 1:
            joined = torch.cat(pieces, piece.axis)
        assert torch.equal(joined, weight), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "several processes cannot read standard input"),
        (["-"], "several processes cannot read standard input"),
        (["--prompt", "x", "--compile"], "leave --compile or --processes out"),
        (["--batch", "x.jsonl"], "leave out --processes"),
        (["--prompt", "x", "--weights", "int8"], "leave --weights out, or --processes"),
        (["--prompt", "x", "--parallel", "pipeline"], "the nearest number is --processes 1"),
        (
            ["--prompt", "x", "--parallel", "pipeline", "--exit", "confidence:0.9"],
            "leave --exit out, or give --parallel tensor",
        ),
    ],
)
def test_what_several_cannot_do_is_refused(
    words: list[str], message: str, run_of: RunOf, addnorm: Command
) -> None:
    code, out, err = addnorm("generate", run_of("language"), *words, "--processes", 2)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "evaluate"])
def test_heads_that_do_not_divide_are_refused_before_processes_start(
    command: str, run_of: RunOf, addnorm: Command
) -> None:
    words = ["--prompt", "x"] if command == "generate" else []
    code, out, err = addnorm(command, run_of("language"), *words, "--processes", 99)
    assert (code, out) == (2, "")
    assert err == (
        "addnorm: n_heads = 2 of layer 0 (model.attention) do not divide among 99 processes: the "
        "nearest number that does is --processes 2\n"
    )
