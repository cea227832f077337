"""A process that does nothing is named, and all end; one that is slow is left alone."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.tiny import write_recipe

from addnorm.training.parallel.clock import Judge, Signs, place_of, processor_time_of

WORKS, WAITS, RESTS = "works", "waits", "rests"


def judged(lives: dict[int, list[str]], patience: float = 3.0) -> tuple[int, int | None]:
    """The second at which a judge finds an idle process, and which; of lives second by second."""
    judge, signs = Judge(patience), dict.fromkeys(lives, Signs())
    n = len(next(iter(lives.values())))
    for second in range(n):
        for rank, life in lives.items():
            now = signs[rank]
            if life[second] != "stopped":
                now = replace(now, signs=now.signs + 1, waits=life[second] == WAITS)
            signs[rank] = replace(now, works=now.works + (life[second] == WORKS))
        rank = judge.idle(signs, 1.0)
        if rank is not None or judge.all_wait():
            return second, rank
    return n, None


def test_one_that_rests_is_named_and_one_that_waits_is_not() -> None:
    lives = {0: [WORKS] * 3 + [WAITS] * 9, 1: [WORKS] * 2 + [RESTS] * 10}
    assert judged(lives) == (5, 1)


def test_one_that_is_stopped_while_it_waits_is_named() -> None:
    lives = {0: [WORKS] * 12, 1: [WAITS] * 4 + ["stopped"] * 8}
    assert judged(lives) == (7, 1)


def test_all_that_wait_for_each_other_are_found() -> None:
    assert judged({0: [WORKS] + [WAITS] * 9, 1: [WAITS] * 10}) == (4, None)


@given(st.data())
def test_while_each_rests_at_most_as_long_as_patience_none_is_named(data: st.DataObject) -> None:
    """The first always works, as a leader does that the others wait for."""
    spell = st.tuples(st.sampled_from([WORKS, WAITS]), st.integers(0, 3)).map(
        lambda part: [WORKS] + [RESTS] * part[1] if part[0] == WORKS else [WAITS] * 9 + [WORKS]
    )
    spells = st.lists(spell, min_size=9, max_size=9)
    lives = [[*chain.from_iterable(data.draw(spells))] for _ in range(3)]
    n = min(map(len, lives))
    among = {0: [WORKS] * n} | {rank: life[:n] for rank, life in enumerate(lives, 1)}
    assert judged(among) == (n, None)


def test_a_thread_that_sleeps_takes_no_processor_and_its_line_is_named() -> None:
    awake = threading.Event()
    thread = threading.Thread(target=awake.wait)
    thread.start()
    assert thread.ident is not None
    before = processor_time_of(thread.ident)
    time.sleep(0.05)
    assert processor_time_of(thread.ident) - before < 0.01
    place, waits = place_of(thread.ident)
    assert place.startswith("threading.py:")
    assert not waits
    awake.set()
    thread.join()


SLEEPY = """
import os, time
from addnorm.training import checkpoint, trainer

rank, update, write = os.environ.get("RANK"), trainer.Trainer.update, checkpoint.write_saved

def sleeps(self, group):
    update(self, group)
    if rank == "1" and self.state.step == 25:
        time.sleep(600)

def computes_for_long(self, group):
    update(self, group)
    end = time.monotonic() + 5
    while rank == "1" and self.state.step == 25 and time.monotonic() < end:
        pass

def writes_for_long(*args):
    time.sleep(2)
    write(*args)
"""
PATIENCE = ["--patience", 2]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), "language")


def command(recipe: Path, run: Path, plant: str, steps: int = 40) -> list[str]:
    """The command of a training in two processes, with something planted."""
    planted = run.with_suffix(".py")
    planted.write_text(SLEEPY + plant)
    plan = ["--processes", 2, "--parallel.data", 2, "--import", planted, "--out", run]
    words = ["train", recipe, *plan, *PATIENCE, "--train.save_every", 20, "--train.steps", steps]
    return [sys.executable, "-m", "addnorm", *map(str, words)]


@pytest.mark.long
def test_a_process_that_sleeps_is_named_and_all_end(tmp_path: Path, recipe: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run(
        command(recipe, run, "trainer.Trainer.update = sleeps"), capture_output=True, text=True
    )
    assert time.time() - (run / "checkpoints/step-00000020").stat().st_mtime < 30
    assert done.returncode == 1
    assert "addnorm: rank 1 (process " in done.stderr, done.stderr
    message = done.stderr[done.stderr.index("addnorm: rank 1 (process ") :].splitlines()[0]
    assert "did nothing for 2 s at run.py:" in message
    last = r"all_(reduce|gather) no\. \d+ of \w+"
    exchanges = rf"\(last exchanges: rank 0 waits in {last}, rank 1 ended {last}\)"
    assert re.search(rf"{exchanges} during step 26; ", message), message
    assert "saved is everything up to step 20; resume with `addnorm train --resume" in message
    assert "Traceback" not in done.stderr
    assert done.stderr.count("addnorm: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_is_named_and_all_end(
    tmp_path: Path, recipe: Path, rank: int
) -> None:
    run = tmp_path / "run"
    words = command(recipe, run, "", steps=100_000)
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not any((run / "checkpoints").glob("step-*")):
        time.sleep(0.05)
    pids = [int(pid) for pid in children.read_text().split()]
    ranks = [pid for pid in pids if b"addnorm" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(ranks[rank], signal.SIGSTOP)
    begin = time.monotonic()
    _, err = process.communicate()
    assert time.monotonic() - begin < 60  # the launcher waits for half a minute before it kills
    assert process.returncode == 1
    assert f"addnorm: rank {rank} (process {ranks[rank]} on " in err
    assert "did nothing for 2 s" in err
    assert err.count("addnorm: ") == 1
    assert "resume with `addnorm train --resume" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    ["trainer.Trainer.update = computes_for_long", "checkpoint.write_saved = writes_for_long"],
)
def test_a_slow_process_is_left_alone(tmp_path: Path, recipe: Path, plant: str) -> None:
    run = tmp_path / "run"
    done = subprocess.run(command(recipe, run, plant), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
