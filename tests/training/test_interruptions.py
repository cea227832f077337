"""Interruptions: a full disk is waited for, a signal stops training, and nothing saved is lost."""

import errno
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from tests.disks import fill
from tests.training import tiny
from tests.training.tiny import contents, everything, interrupt, journal, same, steps_of

from addnorm.training import interruptions
from addnorm.training.callbacks import StepEvent
from addnorm.training.interruptions import ExhaustedError, out_of_memory, patiently, stop_requests
from addnorm.training.trainer import Trainer, Validation

pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "WAIT", 0.3)


class FillsAt:
    """A callback that fills the disk when a step has been made."""

    def __init__(self, step: int, disk: Path, left: int) -> None:
        self.step, self.disk, self.left = step, disk, left

    def on_step(self, event: StepEvent) -> None:
        if event.step == self.step:
            fill(self.disk, self.left)


def better_and_better() -> Validation:
    scores = iter(range(100, 0, -1))
    return Validation(lambda _: {"loss": float(next(scores))})


CASES = {  # what is written next when so little is left after step 7
    "the journal": (0, {"steps": 70, "save_every": 60}),  # its page is full after forty lines
    "step 10": (9000, {}),
    "the best weights": (9000, {"validate_every": 8, "save_every": 100}),
}


def trainer_on(disk: Path, folder: Path, case: str) -> Trainer:
    left, settings = CASES[case]
    validation = better_and_better() if "validate_every" in settings else None
    fills = FillsAt(7, disk, left)
    return tiny.trainer(folder, callbacks=[fills], validation=validation, **settings)


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_ends_a_run_without_losing_saved_checkpoints(disk: Path, case: str) -> None:
    messages: list[str] = []
    trainer = trainer_on(disk, disk / "r", case)
    trainer.world.say = messages.append
    with pytest.raises(ExhaustedError, match=f"^{case} cannot be written: No space left") as raised:
        trainer.fit()
    last = 5 if case == "step 10" else 0
    assert raised.value.__notes__ == [f"saved is everything up to step {last}"]
    assert len(messages) == 1
    assert "Waiting" in messages[0]
    assert steps_of(disk / "r") == ([last] if last else [])
    assert not [path for path in (disk / "r").rglob("*") if "partial" in path.name]
    (disk / "ballast").unlink()
    lines = (disk / "r" / "metrics.jsonl").read_text()
    assert lines.endswith("}\n")
    again = tiny.trainer(disk / "r", seed=4, validation=trainer.validation)
    assert again.resume() == []
    assert again.state.step == last


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_run_continues_bit_for_bit_once_there_is_space(
    disk: Path, tmp_path: Path, case: str
) -> None:
    """Equal to the bit to a run that had space all the time, journal included."""
    _, settings = CASES[case]
    validation = better_and_better() if "validate_every" in settings else None
    straight = tiny.trainer(tmp_path / "straight", validation=validation, **settings)
    straight.fit()
    messages: list[str] = []

    def mend(line: str) -> None:
        messages.append(line)
        (disk / "ballast").unlink(missing_ok=True)

    trainer = trainer_on(disk, disk / "r", case)
    trainer.world.say = mend
    trainer.fit()
    assert len(messages) == 2
    assert messages[1] == f"{case} is written: training continues"
    same(everything(trainer), everything(straight))
    assert contents(disk / "r") == contents(tmp_path / "straight")


def test_a_disk_that_is_temporarily_read_only_is_waited_for(disk: Path) -> None:
    def mount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    messages: list[str] = []

    def mend(line: str) -> None:
        messages.append(line)
        mount("rw")

    trainer = tiny.trainer(disk / "r", callbacks=[tiny.At(7, lambda: mount("ro"))])
    trainer.world.say = mend
    trainer.fit()
    assert "Read-only file system" in messages[0]
    assert len(journal(disk / "r")) == 12


def test_other_errors_are_not_waited_for() -> None:
    def missing() -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "f")

    with pytest.raises(FileNotFoundError):
        patiently(missing, "it", lambda _: pytest.fail("waiting cannot fix that"))


def test_full_memory_is_reported_with_the_saved_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny.trainer(tmp_path)
    update = trainer.update

    def full(group: list[object]) -> None:
        if trainer.state.step == 7:
            torch.empty(2**60)
        update(group)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "update", full)
    with pytest.raises(ExhaustedError, match=r"^step 8: out of memory\. Smaller batches") as raised:
        trainer.fit()
    assert raised.value.__notes__ == ["saved is everything up to step 5"]
    assert out_of_memory(RuntimeError("sizes differ")) is None
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) is not None


# Signals.


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> None:
    # What a shell starts in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_first_signal_is_reported_once_and_later_ones_interrupt() -> None:
    calls: list[int] = []
    with stop_requests(lambda: calls.append(1)) as stop:
        assert stop == []
        interrupt(signal.SIGTERM)
        assert (stop, calls) == ([signal.SIGTERM], [1])
        interrupt()
        assert (len(stop), calls) == (2, [1])
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_are_not_handled_in_another_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    observed: list[object] = []

    def watch() -> None:
        with stop_requests() as stop:
            observed.append((stop, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert observed == [([], before)]
