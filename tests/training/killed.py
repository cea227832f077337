"""Processes killed while training or saving; a script, so that forks have no threads.

`python -m tests.training.killed save|train FOLDER KILLS SEED` exits with 0 if nothing was lost.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep

import torch
from tests.training import tiny

from addnorm.training.callbacks import Heard, StepEvent
from addnorm.training.checkpoint import (
    checkpoints_in,
    keep_latest,
    latest_checkpoint,
    load_checkpoint,
)
from addnorm.training.trainer import Trainer

TRAIN = {"steps": 100, "save_every": 7, "keep": 2, "ema": 0.9, "accumulate": 2}


def start(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that runs `work(pipe)`, and the end of the pipe to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        work(writer)
        os._exit(0)
    os.close(writer)
    return child, reader


def kill_after(child: int, reader: int, steps: int, wait: float) -> list[int]:
    """Kill the child some seconds after it reported some steps; return all that it reported.

    Steps, because on a busy machine time alone would kill it before it has begun.
    """
    output = b""
    while output.count(b" ") < steps and (more := os.read(reader, 4096)):
        output += more
    sleep(wait)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 4096):
        output += more
    os.close(reader)
    return [int(step) for step in output.split()]


def save_forever(folder: Path) -> Callable[[int], None]:
    """Save checkpoints one after the other, and report each step when it is saved."""

    def work(writer: int) -> None:
        newest, _ = latest_checkpoint(folder)
        step = 0 if newest is None else int(newest.name.removeprefix("step-"))
        while True:
            step += 1
            weights = {name: torch.full((40_000,), float(step)) for name in "abc"}
            saved = tiny.save_whole(folder, step, {"model": weights}, {"step": step})
            keep_latest(saved, 2)
            os.write(writer, b"%d " % step)

    return work


def saves(folder: Path, kills: int, rng: Random) -> None:
    """After a kill at any moment, the last reported checkpoint loads, or a later one."""
    for _ in range(kills):
        done = kill_after(*start(save_forever(folder)), rng.randrange(1, 4), rng.uniform(0, 0.03))
        newest, problems = latest_checkpoint(folder)
        assert newest is not None, "no checkpoint is whole"
        assert not problems, problems
        tensors, facts = load_checkpoint(newest)
        assert done[-1] <= facts["step"] <= done[-1] + 1, (done, facts)
        for weight in tensors["model"].values():
            assert (weight == facts["step"]).all(), "half of one step and half of another"
        assert len(list(folder.iterdir())) <= 4, "leftovers pile up"  # 2, one more, one aside


class Says:
    """Writes every step to a pipe."""

    def __init__(self, writer: int) -> None:
        self.writer = writer

    def on_step(self, event: StepEvent) -> None:
        os.write(self.writer, b"%d " % event.step)


def resumed(folder: Path) -> Trainer:
    """A resumed trainer; its first weights do not matter if there is a checkpoint."""
    begun = checkpoints_in(folder / "checkpoints")
    trainer = tiny.trainer(folder, seed=os.getpid() if begun else 0, **TRAIN)
    assert trainer.resume() == []
    return trainer


def training(folder: Path, writer: int) -> None:
    trainer = resumed(folder)
    trainer.callbacks.add(Says(writer), Heard())
    trainer.fit()


def trains(folder: Path, kills: int, rng: Random) -> None:
    """A run killed again and again ends as one left alone, bit for bit."""
    alone = tiny.trainer(folder / "alone", **TRAIN)
    alone.fit()
    run = folder / "killed"
    for _ in range(kills):
        child = start(lambda writer: training(run, writer))
        kill_after(*child, rng.randrange(1, 20), rng.uniform(0, 0.02))
        written = (run / "metrics.jsonl").read_bytes().count(b"\n")
        saved = [int(p.name.removeprefix("step-")) for p in checkpoints_in(run / "checkpoints")]
        assert written - max(saved, default=0) <= TRAIN["save_every"], (written, saved)
    last = resumed(run)
    last.fit()
    tiny.same(tiny.everything(alone), tiny.everything(last))
    newest = checkpoints_in(run / "checkpoints")[-1].relative_to(run)
    assert tiny.contents(folder / "alone" / newest) == tiny.contents(run / newest)
    journals = [path / "metrics.jsonl" for path in (folder / "alone", run)]
    assert journals[0].read_bytes() == journals[1].read_bytes()


if __name__ == "__main__":
    what, where, kills, seed = sys.argv[1:]
    torch.set_num_threads(1)
    {"save": saves, "train": trains}[what](Path(where), int(kills), Random(int(seed)))
