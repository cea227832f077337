"""Two small models with dropout, data, and trainers for the training tests."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn

from addnorm.data.batches.buckets import Batch, Buckets
from addnorm.data.ids.encoding import Encoded, EncodedCorpus
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.models.weights import weights_of
from addnorm.nn.attention import AttentionConfig
from addnorm.tasks.registry import TASKS
from addnorm.training.callbacks import Callback, StepEvent
from addnorm.training.checkpoint import Json, load_checkpoint, save_checkpoint
from addnorm.training.optim import optimizer_tensors
from addnorm.training.parallel.world import World
from addnorm.training.random_state import random_state
from addnorm.training.settings import TrainConfig
from addnorm.training.stored import SavedTensor
from addnorm.training.trainer import Trainer, Validation

ROOT = Path(__file__).parents[2]
VOCAB = 13
ModelName = Literal["translator", "decoder"]


def examples(n: int = 23, *, pairs: bool = True) -> EncodedCorpus:
    """Sequences of one to nine tokens; with `pairs`, translations."""
    rng = Random(0)

    def ids() -> list[int]:
        return [rng.randrange(4, VOCAB) for _ in range(rng.randrange(1, 10))]

    if pairs:
        train = [Encoded(i, [*ids(), 3], [*ids(), 3]) for i in range(n)]
    else:
        rows = [ids() for _ in range(n)]
        train = [Encoded(i, [2, *row], [*row, 3]) for i, row in enumerate(rows)]
    task = TASKS["translation" if pairs else "language"]
    return EncodedCorpus(task.name, bos_id=2, pad_id=0, train=train, layout=task.layout)


def batches(model: ModelName = "translator") -> Buckets:
    """Seven ragged batches, in another order every epoch."""
    corpus = examples(pairs=model == "translator")
    return Buckets(corpus, corpus.train, 30 if model == "translator" else 24, seed=5)


def build(
    model: ModelName = "translator", *, dropout: float = 0.2, seed: int = 0, **parts: Any
) -> nn.Module:
    """An untrained model, the embeddings tied; `parts` are fields of its configuration."""
    torch.manual_seed(seed)
    kind = EncoderDecoderConfig if model == "translator" else DecoderConfig
    attention = AttentionConfig(n_heads=2)
    config = kind(d_model=16, n_layers=1, dropout=dropout, attention=attention, **parts)
    return config.build(VOCAB)


def trainer(
    folder: Path,
    model: ModelName = "translator",
    *,
    validation: Validation | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    dropout: float = 0.2,
    parts: Mapping[str, Any] | None = None,
    world: World | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer of 12 steps that saves every 5, unless `settings` say otherwise."""
    lasts = {} if "epochs" in settings else {"steps": 12}
    config = TrainConfig(**{**lasts, "save_every": 5, "device": "cpu", "lr": 0.01, **settings})
    net = build(model, dropout=dropout, seed=seed, **(parts or {}))
    return Trainer(
        net,
        batches(model),
        config,
        folder,
        validation=validation,
        callbacks=callbacks,
        world=world,
    )


class At:
    """Calls `do` when step `step` has just been made."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.step = step
        self.do = do

    def on_step(self, event: StepEvent) -> None:
        if event.step == self.step:
            self.do()


class Crash(Exception):
    """Stands for whatever may end a process."""


def crash() -> None:
    raise Crash


def interrupt(number: int = signal.SIGINT) -> None:
    signal.raise_signal(number)  # handled here and now: two in a row never become one


class Merged:
    """The batches of `inner`, `size` at a time as one big batch."""

    def __init__(self, inner: Buckets, size: int) -> None:
        self.inner = inner
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.inner) // self.size)

    def plan(self, epoch: int) -> list[list[int]]:
        plan = self.inner.plan(epoch)
        groups = [plan[i : i + self.size] for i in range(0, len(plan), self.size)]
        return [[i for items in group for i in items] for group in groups]

    def batches(self, epoch: int, start: int = 0):
        return (self.inner.build(items) for items in self.plan(epoch)[start:])


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """All that a resume must bring back, as tensors."""
    average = {} if trainer.average is None else trainer.average.weights
    state = [v or 0 for v in vars(trainer.state).values()]
    return {
        **{f"model.{k}": v.clone() for k, v in weights_of(trainer.model).items()},
        **{f"optimizer.{k}": v.clone() for k, v in states(trainer.optimizers).items()},
        **{f"average.{k}": v.clone() for k, v in average.items()},
        **random_state(trainer.device),
        "standing": torch.tensor(state, dtype=torch.float64),
    }


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Equal bit for bit."""
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path there."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def journal(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]


def all_ignored(batch: Batch) -> Batch:
    """The batch with nothing to predict."""
    return replace(batch, targets=torch.full_like(batch.targets, -100), n_tokens=0)


def steps_of(folder: Path) -> Sequence[int]:
    """The steps of the checkpoints in a run folder, each of them loaded."""
    return [
        load_checkpoint(path)[1]["standing"]["step"]
        for path in sorted((folder / "checkpoints").glob("step-*"))
    ]


def save_whole(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Json
) -> Path:
    """Save a checkpoint of one process."""
    groups = {
        name: {key: SavedTensor(tensor) for key, tensor in group.items()}
        for name, group in tensors.items()
    }
    return save_checkpoint(folder, step, groups, facts)


def states(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The tensors of the states of some optimisers."""
    return optimizer_tensors(optimizers, lambda tensor, _: tensor)


def in_a_process(program: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a program where types are not checked at run time, which is not for compilers."""
    return _python("-c", program, *words)


def kill_repeatedly(what: str, folder: Path, kills: int) -> None:
    """Run `tests.training.killed`, and check that nothing was lost."""
    done = _python("-m", "tests.training.killed", what, folder, kills, 1)
    assert done.returncode == 0, done.stderr


def _python(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
