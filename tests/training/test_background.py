"""Checkpoints that are written during training: the same files, and errors that are told."""

import threading
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from tests.training import tiny

from addnorm.training import checkpoint, interruptions, trainer
from addnorm.training.background import Background, Copies
from addnorm.training.callbacks import Heard, StepEvent
from addnorm.training.checkpoint import load_checkpoint
from addnorm.training.interruptions import ExhaustedError
from addnorm.training.parallel.world import OneProcess
from addnorm.training.stored import SavedTensor


class Several(OneProcess):
    """One process that takes itself for the leading one of two."""

    size = 2


def trained(folder: Path, world: OneProcess) -> "trainer.Trainer":
    made = tiny.trainer(folder, steps=9, save_every=2, keep=9, ema=0.9, world=world)
    made.fit()
    return made


def test_checkpoints_are_those_of_training_that_waits(tmp_path: Path) -> None:
    one, several = (trained(tmp_path / w.__name__, w()) for w in (OneProcess, Several))
    steps = [path.name for path in sorted((one.folder / "checkpoints").iterdir())]
    assert steps == [path.name for path in sorted((several.folder / "checkpoints").iterdir())]
    for step in steps:
        ours, theirs = (load_checkpoint(t.folder / "checkpoints" / step) for t in (several, one))
        assert ours[1] == theirs[1]
        for group, tensors in theirs[0].items():
            for name, tensor in tensors.items():
                assert torch.equal(ours[0][group][name], tensor), (step, group, name)
    assert several.saved_step == one.saved_step == 9


def test_training_continues_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, save, saved = threading.Event(), trainer.save_checkpoint, list[int]()

    def slow(*args: object) -> Path:
        later.wait(30)
        return save(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(trainer, "save_checkpoint", slow)
    made = tiny.trainer(tmp_path, steps=4, save_every=2, world=Several())

    class Records:
        def on_step(self, event: StepEvent) -> None:
            saved.append(made.saved_step)
            if event.step == 3:
                later.set()

    made.callbacks.add(Records(), Heard())
    made.fit()
    assert saved[:3] == [0, 0, 0]
    assert made.saved_step == 4


def test_a_disk_that_stays_full_ends_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(interruptions, "WAIT", 0.0)
    monkeypatch.setattr(checkpoint, "write_saved", full)
    made = tiny.trainer(tmp_path, steps=9, save_every=2, world=Several())
    with pytest.raises(ExhaustedError, match="step 2 cannot be written: No space left") as error:
        made.fit()
    assert "saved is everything up to step 0" in error.value.__notes__
    assert made.state.step == 4


def test_an_error_is_raised_where_the_work_is_awaited_and_once() -> None:
    background = Background()

    def fail() -> None:
        raise ValueError("told")

    background.start(fail)
    with pytest.raises(ValueError, match="told"):
        background.finish()
    background.finish()
    background.start(fail)
    with pytest.raises(ValueError, match="told"):
        background.start(lambda: None)


@pytest.mark.parametrize("error", [None, RuntimeError("first")])
def test_work_is_awaited_at_the_end_also_after_an_error(error: Exception | None) -> None:
    background, done = Background(), list[int]()
    work: Callable[[], None] = lambda: done.append(1)  # noqa: E731

    def body() -> None:
        with background.finishing():
            background.start(work)
            if error is not None:
                raise error

    if error is None:
        body()
    else:
        with pytest.raises(RuntimeError, match="first"):
            body()
    assert done == [1]


def test_copies_take_the_memory_of_the_last() -> None:
    copies, model = Copies(), torch.nn.Linear(3, 2)

    def copied() -> SavedTensor:
        return copies.of({"model": {"weight": SavedTensor(model.weight, (4, 0))}})["model"][
            "weight"
        ]

    first = copied()
    assert first.start == (4, 0)
    before = first.tensor.clone()
    model.weight.data += 1
    assert torch.equal(first.tensor, before)
    second = copied()
    assert torch.equal(second.tensor, model.weight)
    assert second.tensor.data_ptr() == first.tensor.data_ptr()
    model.weight = torch.nn.Parameter(torch.ones(4, 4))
    assert torch.equal(copied().tensor, torch.ones(4, 4))
