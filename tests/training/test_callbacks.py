"""Callbacks hear of everything once, change nothing, and end training with their own error."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.test_validation import scripted
from tests.training.tiny import everything, journal, same, steps_of

from addnorm.errors import InputError
from addnorm.training.callbacks import (
    Callbacks,
    Heard,
    SaveEvent,
    StepEvent,
    ValidationEvent,
    check_callbacks,
)
from addnorm.training.checkpoint import check_checkpoint
from addnorm.training.trainer import Trainer


class Awaited:
    """Does nothing unless it is awaited."""

    async def on_step(self, event: StepEvent) -> None: ...


class Records:
    """Keeps the figures of each event, and checks each checkpoint."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.saved: list[int] = []

    def on_step(self, event: StepEvent) -> None:
        self.lines.append({"step": event.step, **event.figures})

    def on_validation(self, event: ValidationEvent) -> None:
        self.lines.append({"step": event.step, **event.figures})

    def on_save(self, event: SaveEvent) -> None:
        assert check_checkpoint(event.folder)
        self.saved.append(event.step)


def test_they_get_the_lines_of_the_log_and_whole_checkpoints(tmp_path: Path) -> None:
    records = Records()
    validation = scripted(3.0, 2.0, 4.0)
    tiny.trainer(tmp_path, validation=validation, callbacks=[records], validate_every=4).fit()
    assert records.lines == journal(tmp_path)
    assert records.saved == [5, 10, 12] == [*steps_of(tmp_path)]


def test_a_part_that_one_leaves_in_evaluation_mode_trains_at_the_next_step(tmp_path: Path) -> None:
    class Evaluates:
        def on_step(self, event: StepEvent) -> None:
            trainer.whole.decoder.eval()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]

    modes: list[bool] = []
    trainer = tiny.trainer(tmp_path, callbacks=[Evaluates()])
    trainer.whole.decoder.register_forward_pre_hook(lambda part, _: modes.append(part.training))  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    trainer.fit()
    assert len(modes) >= 12
    assert all(modes)


class Draws:
    """Draws random numbers at each event."""

    def on_step(self, _: StepEvent) -> None:
        torch.manual_seed(0)

    def on_validation(self, _: ValidationEvent) -> None:
        torch.rand(7)

    def on_save(self, _: SaveEvent) -> None:
        torch.rand(3)


@pytest.mark.long
def test_training_is_equal_to_the_bit_without_them(tmp_path: Path) -> None:
    def trained(name: str, *callbacks: Any) -> Trainer:
        trainer = tiny.trainer(
            tmp_path / name, validation=scripted(3, 2, 1), callbacks=callbacks, validate_every=5
        )
        trainer.fit()
        return trainer

    with_them, without = trained("with", Draws(), Records()), trained("without")
    same(everything(with_them), everything(without))
    assert tiny.contents(with_them.folder) == tiny.contents(without.folder)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RuntimeError("can't allocate memory"), marks=pytest.mark.long),
        pytest.param(ZeroDivisionError("x"), marks=pytest.mark.slow),
        pytest.param(InputError("bad"), marks=pytest.mark.slow),
    ],
)
def test_an_error_ends_training_as_it_is_and_the_run_resumes(
    tmp_path: Path, error: Exception
) -> None:
    def fail() -> None:
        raise error

    straight = tiny.trainer(tmp_path / "straight")
    straight.fit()
    first = tiny.trainer(tmp_path / "failed", callbacks=[tiny.At(8, fail)])
    with pytest.raises(type(error)) as raised:
        first.fit()
    assert raised.value is error
    assert raised.traceback[-1].name == "fail"
    assert error.__notes__[-1] == "saved is everything up to step 5"
    again = tiny.trainer(tmp_path / "failed", seed=3)
    assert again.resume() == []
    again.fit()
    same(everything(again), everything(straight))


def test_what_one_has_heard_before_is_not_told_again() -> None:
    new, old = Records(), Records()
    callbacks = Callbacks([new], torch.device("cpu"))
    callbacks.add(old, Heard(step=5, validation=3))
    for step in range(4, 8):
        callbacks.step(StepEvent(step, 9, {"loss": 1.0}))
        callbacks.validation(ValidationEvent(step, 9, {"loss": 2.0}))
    assert [line["step"] for line in new.lines] == [4, 4, 5, 5, 6, 6, 7, 7]
    assert [line["step"] for line in old.lines] == [4, 5, 6, 6, 7, 7]


class Entered(Records):
    """Keeps how it was left."""

    def __enter__(self) -> None:
        self.left: object = None

    def __exit__(self, kind: object, *_: object) -> None:
        self.left = kind


def test_context_managers_are_entered_and_left_with_the_error() -> None:
    entered = Entered()
    callbacks = Callbacks([Records(), entered], torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt), callbacks.entered():
        raise KeyboardInterrupt
    assert entered.left is KeyboardInterrupt


class Misspelt:
    def on_steps(self, event: StepEvent) -> None: ...


class TakesMore:
    def on_save(self, event: SaveEvent, trainer: object) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Misspelt()], r"Misspelt has none of the methods on_step, .* Did you mean 'on_step'\?"),
        ([Awaited()], "Awaited.on_step is async, and training awaits nothing"),
        ([Records], "Records is a class: give an object of it"),
        ([TakesMore()], "TakesMore.on_save is called with the event alone: missing"),
        (Records(), r"callbacks is a list of objects: callbacks=\[Records\]"),
        ([print], "has none of the methods on_step, on_validation, on_save"),
    ],
)
def test_wrong_ones_are_refused_before_training(callbacks: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_callbacks(callbacks)
    records = Records()
    assert check_callbacks([records]) == (records,)
