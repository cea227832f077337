"""The progress bar shows the state of training."""

import io
import re
import time

import pytest
from rich.console import Console

from addnorm import long_work
from addnorm.tasks.registry import TASKS
from addnorm.training import progress
from addnorm.training.callbacks import StepEvent, ValidationEvent
from addnorm.training.progress import ProgressBar, tell, text_progress


def step_event(step: int, total: int, loss: float, tokens: int) -> StepEvent:
    return StepEvent(step, total, {"loss": loss, "tokens": tokens})


def wait_for(text: str, console: Console) -> None:
    """Wait until a text is shown, for at most ten seconds."""
    end = time.monotonic() + 10
    while text not in console.file.getvalue() and time.monotonic() < end:  # type: ignore[attr-defined]
        time.sleep(0.005)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)


def test_shows_step_loss_and_scores(console: Console) -> None:
    with ProgressBar(console) as bar:
        bar.on_step(step_event(3, 10, 1.23456, 100))
        bar.on_validation(ValidationEvent(3, 10, {"loss": 2.0, "bleu": 31.4159}))
        bar.on_step(step_event(4, 10, 1.0, 100))
    shown = console.file.getvalue()
    assert "4/10" in shown
    assert "loss 1.000" in shown
    assert "step      3 · valid loss 2 · bleu 31.42" in shown


def test_validations_are_shown_seconds_apart_and_the_last_always(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with ProgressBar(console) as bar:
        for step in range(1, 101):
            now += 0.5
            bar.on_step(step_event(step, 100, 1.0, 1))
            if step % 4 == 0:
                bar.on_validation(ValidationEvent(step, 100, {"loss": 2.0}))
    shown = console.file.getvalue()
    assert shown.count("valid loss") == 9
    assert "step      4 · valid" in shown
    assert "step    100 · valid" in shown


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_shows_a_bar_or_without_ipywidgets_lines(
    widgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda _: object() if widgets else None)
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    assert progress.shows_bars(notebook) == widgets
    assert not progress.shows_bars(Console(file=io.StringIO()))


def test_a_terminal_that_redraws_nothing_has_lines_as_a_log_has() -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with ProgressBar(dumb) as bar:
        bar.on_step(step_event(1, 10, 2.0, 100))
    assert "step 1/10 · loss 2.000" in dumb.file.getvalue()


def test_counts_from_the_step_at_which_a_run_resumes(console: Console) -> None:
    with ProgressBar(console) as bar:
        bar.on_step(step_event(9001, 10_000, 1.0, 1))
    assert "9001/10000" in console.file.getvalue()


def test_speed_is_that_of_the_last_steps_without_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    speed = progress._Speed()
    assert speed.after(0) == 0.0, "no time has passed"
    for _ in range(300):
        now += 0.5
        last = speed.after(50)
    assert last == pytest.approx(100)
    now += 1000  # a validation
    speed.restart()
    now += 0.25
    assert speed.after(50) == pytest.approx(200)
    assert len(speed._marks) <= 100


def test_without_a_terminal_lines_at_steps_that_grow_and_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    console = Console(file=io.StringIO(), width=120)
    with ProgressBar(console) as bar:
        for step in range(1, 301):
            now += 0.1 if step <= 200 else 40.0
            bar.on_step(step_event(step, 1000, 2.0, 100))
        bar.say("something")
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("step ")]
    steps = [int(line.split()[1].partition("/")[0]) for line in lines]
    assert steps[:8] == [1, 2, 5, 10, 20, 50, 100, 200]
    assert steps[8:12] == [202, 204, 206, 208]
    assert "loss 2.000" in lines[2]
    assert lines[2].endswith("0:01:40 left")
    assert "something" in console.file.getvalue()


def test_without_a_terminal_a_log_has_only_lines_and_ends_with_the_last_step() -> None:
    console = Console(file=io.StringIO(), width=120)
    with ProgressBar(console) as bar:
        for step in range(1, 8):
            bar.on_step(step_event(step, 7, 1.0, 100))
    *_, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert last.startswith("step 7/7 · loss 1.000")
    assert "━" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_speed_is_in_the_unit_of_the_targets() -> None:
    console = Console(file=io.StringIO(), width=120)
    with ProgressBar(console, "examples") as bar:
        bar.on_step(step_event(1, 7, 1.0, 100))
    assert "examples/s" in console.file.getvalue()  # type: ignore[attr-defined]
    assert TASKS["classification"].target_unit == "examples"
    assert TASKS["forecasting"].target_unit == "values"
    assert TASKS["tagging"].target_unit == TASKS["translation"].target_unit == "tokens"


def test_a_long_text_is_reported_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "shown_after", lambda: iter([0.5]))
    console = Console(file=io.StringIO(), width=120)
    with text_progress(console, "tokenising", 20_000_000) as advance:
        advance(5_000_000)
        wait_for("25%", console)
    monkeypatch.setattr(progress, "shown_after", lambda: iter([60.0]))
    with text_progress(console, "tokenising", 1000) as advance:
        advance(1000)
    first, second = console.file.getvalue().splitlines()
    assert first == "tokenising: 20,000,000 characters"
    assert re.fullmatch(r"tokenising, 25%: \d+ s so far", second)


def test_validation_that_takes_long_is_shown(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "shown_each_second", lambda: iter([0.01]))
    with ProgressBar(console) as bar:
        bar.on_step(step_event(3, 10, 1.0, 100))
        with bar.busy("validating"):
            wait_for("validating, 0 s", console)
        bar.on_step(step_event(4, 10, 1.0, 100))
    assert "validating, 0 s" in console.file.getvalue()
    monkeypatch.setattr(long_work, "PATIENCE", 0.01)
    log = Console(file=io.StringIO(), width=120)
    with ProgressBar(log) as bar, bar.busy("validating"):
        wait_for("validating", log)
    assert log.file.getvalue().startswith("validating: 0 s so far\n")  # type: ignore[attr-defined]


def test_a_stopped_bar_is_taken_away_and_lines_are_folded() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    bar = ProgressBar(console).__enter__()
    bar.on_step(step_event(3, 10, 1.0, 100))
    bar.say("stopping after this step, which is then saved; Ctrl-C again stops at once")
    bar.__exit__(KeyboardInterrupt, None, None)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "which is then\nsaved; Ctrl-C again" in shown
    assert shown.endswith("\x1b[2K")
    plain = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown)
    assert all(len(line) <= 37 for line in re.split("[\r\n]", plain) if "training" in line)


def test_a_text_has_a_bar_on_a_terminal(console: Console) -> None:
    with text_progress(console, "tokenising", 200) as advance:
        advance(50)
    shown = console.file.getvalue()
    assert "tokenising" in shown
    assert "25%" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_folded_in_a_terminal_alone(terminal: bool) -> None:
    shown = io.StringIO()
    tell(Console(file=shown, width=20, force_terminal=terminal), "train: 1,234 read, 1,230 used")
    separator = "\n" if terminal else " "
    assert shown.getvalue() == f"train: 1,234 read,{separator}1,230 used\n"
