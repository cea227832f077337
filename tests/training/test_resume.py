"""Resuming after crashes, signals and kills gives bit-identical results."""

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from tests.contracts import combined
from tests.training import tiny
from tests.training.tiny import (
    At,
    Crash,
    contents,
    crash,
    everything,
    interrupt,
    journal,
    same,
    steps_of,
)

from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig
from addnorm.nn.routers import SigmoidRouterConfig
from addnorm.training.checkpoint import checkpoints_in, load_checkpoint
from addnorm.training.optim import AdamW8bitConfig, MuonConfig
from addnorm.training.schedule import (
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    LinearConfig,
    ScheduleConfig,
    WarmupStableDecayConfig,
)
from addnorm.training.trainer import (
    Interrupted,
)

pytestmark = pytest.mark.usefixtures("types_unchecked")

RUNS = {
    "adamw": {},
    "muon": {"optimizer": MuonConfig()},
    "ema": {"ema": 0.9},
    "accumulation": {"accumulate": 2, "save_every": 3},
    "all at once": {"optimizer": MuonConfig(), "ema": 0.5, "accumulate": 3, "label_smoothing": 0.1},
    "bfloat16": {"precision": "bfloat16"},
    "epochs": {"epochs": 2, "save_every": None},
    "batchnorm": {"parts": {"norm": BatchNormConfig()}, "ema": 0.9},
    "moe": {"parts": {"feedforward": MixtureOfExpertsConfig(expert=FeedForwardConfig(d_ff=5))}},
    "moe_corrected": {
        "parts": {
            "feedforward": MixtureOfExpertsConfig(
                expert=FeedForwardConfig(d_ff=5),
                router=SigmoidRouterConfig(correction_rate=0.1),
                shared=FeedForwardConfig(d_ff=3),
            )
        }
    },
}


@pytest.mark.parametrize(("model", "name"), combined(["translator", "decoder"], RUNS))
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, model, name) -> None:
    """One run is never interrupted; the other crashes, is stopped by Ctrl-C, and resumes twice."""
    settings = RUNS[name]
    straight = tiny.trainer(tmp_path / "straight", model, **settings)
    assert straight.resume() == []
    straight.fit()
    half = tmp_path / "half"
    first = tiny.trainer(half, model, callbacks=[At(6, crash)], **settings)
    with pytest.raises(Crash):
        first.fit()
    saved = steps_of(half)
    # Another start would show, but where nothing is saved yet it has to be the same one.
    seed = 7 if saved else 0
    second = tiny.trainer(half, model, callbacks=[At(8, interrupt)], seed=seed, **settings)
    assert second.resume() == []
    assert second.state.step == max(saved, default=0)
    with pytest.raises(Interrupted) as stopped:
        second.fit()
    assert stopped.value.step == second.state.step == 8
    assert steps_of(half)[-1] == 8
    third = tiny.trainer(half, model, seed=8, **settings)
    torch.rand(5)
    assert third.resume() == []
    third.fit()
    assert len(journal(half)) == third.state.step
    same(everything(third), everything(straight))
    ours, theirs = contents(half), contents(tmp_path / "straight")
    last = f"checkpoints/step-{third.state.step:08d}"
    assert ours["metrics.jsonl"] == theirs["metrics.jsonl"]
    assert {k: v for k, v in ours.items() if k.startswith(last)} == {
        k: v for k, v in theirs.items() if k.startswith(last)
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_8_bit_states_resume_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    feedforward = FeedForwardConfig(d_ff=256)  # 16 × 256 values are enough for 8 bits
    settings = {"optimizer": AdamW8bitConfig(), "ema": 0.5, "parts": {"feedforward": feedforward}}
    straight = tiny.trainer(tmp_path / "straight", "decoder", **settings)
    straight.fit()
    first = tiny.trainer(tmp_path / "half", "decoder", callbacks=[At(8, crash)], **settings)
    with pytest.raises(Crash):
        first.fit()
    second = tiny.trainer(tmp_path / "half", "decoder", seed=7, **settings)
    assert second.resume() == []
    assert second.state.step == 5
    second.fit()
    assert any(name.endswith(".codes") for name in everything(second))
    same(everything(second), everything(straight))
    assert contents(tmp_path / "half") == contents(tmp_path / "straight")


def test_the_stops_above_are_in_the_middle_of_an_epoch() -> None:
    for model in ("translator", "decoder"):
        n = len(tiny.batches(model))
        assert n > 5
        assert {5 % n, 6 % n, 8 % n}.isdisjoint({0})


def test_the_same_trainer_can_resume(tmp_path: Path) -> None:
    """Nothing of the stream of batches is left from before."""
    straight = tiny.trainer(tmp_path / "straight")
    straight.fit()
    crashes = iter([crash])
    trainer = tiny.trainer(tmp_path / "again", callbacks=[At(8, lambda: next(crashes, bool)())])
    with pytest.raises(Crash):
        trainer.fit()
    trainer.resume()
    assert trainer.state.step == 5
    trainer.fit()
    same(everything(trainer), everything(straight))


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = tiny.trainer(tmp_path, ema=0.9)
    first.fit()
    files = contents(tmp_path)
    again = tiny.trainer(tmp_path, ema=0.9, seed=5)
    again.resume()
    again.fit()
    assert contents(tmp_path) == files
    same(everything(first), everything(again))


def test_a_finished_run_can_be_given_more_steps(tmp_path: Path) -> None:
    tiny.trainer(tmp_path, steps=4, schedule={"kind": "constant"}).fit()
    more = tiny.trainer(tmp_path, steps=9, schedule={"kind": "constant"}, seed=5)
    more.resume()
    more.fit()
    straight = tiny.trainer(tmp_path / "straight", steps=9, schedule={"kind": "constant"})
    straight.fit()
    same(everything(more), everything(straight))


def test_a_damaged_checkpoint_is_skipped_and_replaced(tmp_path: Path) -> None:
    straight = tiny.trainer(tmp_path / "straight", save_every=4, keep=1)
    straight.fit()
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        tiny.trainer(folder, save_every=4, keep=3, callbacks=[At(11, crash)]).fit()
    damaged = checkpoints_in(folder / "checkpoints")[-1]
    (damaged / "optimizer.safetensors").write_bytes(b"")
    # Only one is kept from here on: the damaged one of step 8 must not be it.
    other = tiny.trainer(folder, save_every=3, keep=1, seed=5, callbacks=[At(7, crash)])
    [problem] = other.resume()
    assert "step-00000008" in problem
    assert "optimizer.safetensors" in problem
    assert other.state.step == 4
    with pytest.raises(Crash):
        other.fit()
    assert steps_of(folder) == [6]
    last = tiny.trainer(folder, save_every=4, keep=1, seed=6)
    assert last.resume() == []
    last.fit()
    same(everything(last), everything(straight))


def test_without_a_checkpoint_the_journal_starts_empty(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        tiny.trainer(tmp_path, callbacks=[At(3, crash)]).fit()
    assert len(journal(tmp_path)) == 3
    trainer = tiny.trainer(tmp_path)
    assert trainer.resume() == []
    trainer.fit()
    assert [line["step"] for line in journal(tmp_path)] == list(range(1, 13))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_repeatedly_ends_bit_for_bit_the_same(
    tmp_path: Path, kills: int
) -> None:
    tiny.kill_repeatedly("train", tmp_path, kills)


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves_it(tmp_path: Path, number: signal.Signals) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    trainer = tiny.trainer(tmp_path, callbacks=[At(7, lambda: interrupt(number))], save_every=100)
    with pytest.raises(Interrupted, match="stopped after step 7, which is saved") as raised:
        trainer.fit()
    assert raised.value.step == 7
    assert steps_of(tmp_path) == [7]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_signal_at_the_last_step_lets_the_run_finish(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[At(12, interrupt)])
    trainer.fit()
    assert steps_of(tmp_path)[-1] == 12


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    # What a shell starts in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trainer = tiny.trainer(tmp_path, callbacks=[At(7, lambda: (interrupt(), interrupt()))])
    messages: list[str] = []
    trainer.world.say = messages.append
    lost = "stopped at once: steps 6 to 7 are lost, saved is everything up to step 5"
    with pytest.raises(Interrupted, match=lost):
        trainer.fit()
    [line] = messages
    assert line.endswith("loses the steps after step 5")
    assert steps_of(tmp_path) == [5]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_between_saving_and_stopping_loses_no_step(tmp_path, monkeypatch) -> None:
    """The step of `Interrupted` must be saved."""
    trainer = tiny.trainer(tmp_path, save_every=100)
    due = trainer.due

    def signalled(every: int | None) -> bool:
        if trainer.state.step == 4:
            interrupt()
        return due(every)

    monkeypatch.setattr(trainer, "due", signalled)
    with pytest.raises(Interrupted) as raised:
        trainer.fit()
    assert steps_of(tmp_path) == [raised.value.step]


def test_trains_outside_the_main_thread_without_signals(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    thread = threading.Thread(target=trainer.fit)
    thread.start()
    thread.join()
    assert trainer.state.step == 12


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_resumes_on_a_gpu(tmp_path: Path, precision) -> None:
    """Bit for bit as far as the kernels are; the state is compared before the next step."""
    settings = {"device": "cuda", "precision": precision, "ema": 0.9}
    first = tiny.trainer(tmp_path, callbacks=[At(7, interrupt)], **settings)
    with pytest.raises(Interrupted):
        first.fit()
    second = tiny.trainer(tmp_path, seed=4, **settings)
    second.resume()
    same(everything(second), everything(first))
    assert second.scaler.state_dict() == first.scaler.state_dict()
    second.fit()
    assert second.state.step == 12


SCHEDULES: dict[str, ScheduleConfig] = {
    "constant": ConstantConfig(),
    "inverse_sqrt": InverseSquareRootConfig(warmup=2),
    "linear": LinearConfig(warmup=2, floor=0.1),
    "cosine": CosineConfig(),
    "wsd": WarmupStableDecayConfig(decay=0.5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_longer_run_reports_its_next_rate_or_keeps_its_schedule(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = SCHEDULES[name]
    tiny.trainer(tmp_path, schedule=schedule, steps=8).fit()
    last = journal(tmp_path)[-1]["lr"]
    assert not capsys.readouterr().err
    tiny.trainer(tmp_path, schedule=schedule, steps=4).resume()
    assert not capsys.readouterr().err
    longer = tiny.trainer(tmp_path, schedule=schedule, steps=16)
    longer.resume()
    message, then = capsys.readouterr().err, 0.01 * schedule.factor(9, 16)
    assert f"learning rate: {last:.3g} at step 8, {then:.3g} from here on" in message
    assert ("train.schedule_steps = 8" in message) == (name != "constant")
    unchanged = tiny.trainer(tmp_path, schedule=schedule, steps=16, schedule_steps=8)
    unchanged.resume()
    message = capsys.readouterr().err
    assert f"{last:.3g} from here on" in message
    assert "schedule_steps" not in message
    unchanged.fit()
    assert [line["lr"] for line in journal(tmp_path)[8:]] == [last] * 8


def test_an_earlier_checkpoint_takes_the_schedule_of_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tiny.trainer(tmp_path, schedule=CosineConfig(), steps=8)
    first.fit()
    newest = checkpoints_in(tmp_path / "checkpoints")[-1]
    tensors, facts = load_checkpoint(newest)
    del facts["schedule_steps"]
    groups = {name: dict(group) for name, group in tensors.items()}
    shutil.rmtree(newest)
    tiny.save_whole(newest.parent, 8, groups, facts)
    tiny.trainer(tmp_path, schedule=CosineConfig(), steps=16).resume(first.config)
    message = capsys.readouterr().err
    assert f"{0.01 * CosineConfig().factor(8, 8):.3g} at step 8" in message
    assert "train.schedule_steps = 8" in message
    assert load_checkpoint(newest)[1]["schedule_steps"] == 16


def test_a_paused_run_continues_with_the_same_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.trainer(tmp_path / "whole", schedule=CosineConfig()).fit()
    first = tiny.trainer(tmp_path / "half", schedule=CosineConfig())
    first.fit(until=6)
    rest = tiny.trainer(tmp_path / "half", schedule=CosineConfig())
    rest.resume()
    rest.fit()
    assert not capsys.readouterr().err
    assert journal(tmp_path / "half") == journal(tmp_path / "whole")
