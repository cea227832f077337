"""Checkpoints are complete or absent: damage, full disks, and kills at any moment."""

import errno
import os
import threading
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import strategies as st
from tests.training import tiny
from torch import Tensor

from addnorm import atomic
from addnorm.errors import InputError
from addnorm.training import checkpoint, interruptions, stored, trainer
from addnorm.training.callbacks import Heard, StepEvent
from addnorm.training.checkpoint import (
    Background,
    Copies,
    check_checkpoint,
    checkpoints_in,
    keep_latest,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    save_weights,
)
from addnorm.training.interruptions import ExhaustedError
from addnorm.training.parallel.world import OneProcess
from addnorm.training.stored import SavedTensor


def tensors(step: int) -> dict[str, dict[str, Tensor]]:
    return {
        "model": {"a.weight": torch.full((5, 7), float(step)), "b": torch.tensor(step)},
        "random": {"cpu": torch.arange(9, dtype=torch.uint8)},
        "empty": {},
    }


def save(folder: Path, *steps: int) -> list[Path]:
    return [tiny.save_whole(folder, step, tensors(step), {"at": step}) for step in steps]


def flip(file: Path, place: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def test_a_checkpoint_round_trips(tmp_path: Path) -> None:
    groups = tensors(3)
    groups["model"]["turned"] = torch.randn(4, 6).T  # not contiguous
    groups["model"]["half"] = torch.randn(3).bfloat16()
    facts = {"standing": {"best": 0.1 + 0.2, "step": 3}, "text": "naïve ☂", "none": None}
    path = tiny.save_whole(tmp_path / "new", 3, groups, facts)
    assert path.name == "step-00000003"
    loaded, found_facts = load_checkpoint(path)
    assert found_facts == facts
    assert loaded.keys() == groups.keys()
    for name, group in groups.items():
        tiny.same(loaded[name], group)
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing is left over"


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1)
    assert tiny.contents(tmp_path / "a") == tiny.contents(tmp_path / "b")


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 4)
    tiny.save_whole(tmp_path, 4, tensors(9), {})
    assert load_checkpoint(tmp_path / "step-00000004")[0]["model"]["b"] == 9


def test_saving_a_step_again_always_leaves_an_intact_checkpoint(tmp_path, monkeypatch) -> None:
    """A kill at any moment leaves an intact checkpoint to resume from."""
    save(tmp_path, 4)
    latest: list[Path | None] = []
    rename = Path.rename

    def looked_at(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        latest.append(latest_checkpoint(tmp_path)[0])
        return moved

    monkeypatch.setattr(Path, "rename", looked_at)
    [last] = save(tmp_path, 4)
    assert len(latest) == 2
    assert None not in latest
    assert checkpoints_in(tmp_path) == [last]


def test_leftovers_of_a_crash_are_removed_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".step-00000001.partial" / "deep").mkdir(parents=True)
    save(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def damages(n: int, rng: Random) -> list[tuple[str, float, int]]:
    """Ways to damage a file: cut, or flip a bit, at a share of its length."""
    return [(rng.choice(["cut", "flip"]), rng.random(), rng.randrange(8)) for _ in range(n)]


def check_damage(folder: Path, n: int) -> None:
    older, newer = save(folder, 1, 2)
    whole = tiny.contents(newer)
    for name, data in whole.items():
        for how, share, bit in damages(n, Random(name)):
            place = int(share * len(data))
            if how == "cut":
                (newer / name).write_bytes(data[:place])
            else:
                flip(newer / name, place, bit)
            with pytest.raises(InputError) as raised:
                load_checkpoint(newer)
            # Where the manifest itself is wrong, it may blame a file that is in order.
            assert str(newer / name) in str(raised.value) or name == "manifest.json"
            assert str(newer) in str(raised.value)
            intact, problems = latest_checkpoint(folder)
            assert intact == older
            assert problems == [str(raised.value)]
            (newer / name).write_bytes(data)
    assert latest_checkpoint(folder) == (newer, [])
    assert tiny.contents(newer) == whole


def test_damage_anywhere_is_found_and_named(tmp_path: Path) -> None:
    check_damage(tmp_path, 40)


@pytest.mark.slow
def test_damage_at_a_thousand_places_is_found(tmp_path: Path) -> None:
    check_damage(tmp_path, 1000)


@pytest.mark.parametrize(
    "name", ["manifest.json", "facts.json", "model.safetensors", "empty.safetensors"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    older, newer = save(tmp_path, 1, 2)
    (newer / name).unlink()
    with pytest.raises(InputError, match=name):
        check_checkpoint(newer)
    assert latest_checkpoint(tmp_path)[0] == older


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"sha256": 1}', '{"sha256": ["a"]}', "é"])
def test_a_manifest_of_another_shape_is_damaged(tmp_path: Path, text: str) -> None:
    [path] = save(tmp_path, 1)
    (path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        load_checkpoint(path)


def test_a_file_that_the_manifest_does_not_list_is_not_loaded(tmp_path: Path) -> None:
    [path] = save(tmp_path, 1)
    save_weights(path / "stranger.safetensors", {"x": torch.ones(1)})
    assert "stranger" not in load_checkpoint(path)[0]


def test_a_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") == (None, [])
    assert checkpoints_in(tmp_path / "none") == []


def test_damaged_checkpoints_are_all_reported(tmp_path: Path) -> None:
    for path in save(tmp_path, 1, 2):
        (path / "facts.json").write_text("{}")
    intact, problems = latest_checkpoint(tmp_path)
    assert intact is None
    assert ["step-00000002" in problems[0], "step-00000001" in problems[1]] == [True, True]


def test_keep_latest_keeps_the_newest(tmp_path: Path) -> None:
    paths = save(tmp_path, 9, 10, 100, 1000)
    keep_latest(paths[-1], 2)
    assert checkpoints_in(tmp_path) == paths[2:]
    keep_latest(paths[-1], 5)
    assert checkpoints_in(tmp_path) == paths[2:]


def test_keep_latest_removes_later_damaged_checkpoints(tmp_path: Path) -> None:
    """A run that went back behind them has just saved step 3."""
    paths = save(tmp_path, 1, 2, 3, 8, 9)
    keep_latest(paths[2], 2)
    assert checkpoints_in(tmp_path) == paths[1:3]


FAULTS = {
    "write_tensors": OSError(errno.ENOSPC, "No space left on device"),
    "fsync": OSError(errno.EIO, "Input/output error"),
    "write_text": OSError(errno.ENOSPC, "No space left on device"),
    "rename": OSError(errno.ENOSPC, "No space left on device"),
}


class Fails:
    """Calls `do` until call number `at`, which raises `error`, as all later ones do."""

    def __init__(self, do, at: int, error: Exception) -> None:
        self.do, self.left, self.error = do, at, error

    def __call__(self, *args, **kwargs):
        if self.left == 0:
            raise self.error
        self.left -= 1
        return self.do(*args, **kwargs)

    def __get__(self, owner, _=None):
        return self if owner is None else lambda *args, **kwargs: self(owner, *args, **kwargs)


CALLS = {"write_tensors": 3, "fsync": 7, "write_text": 2, "rename": 1}
"""How often one save makes each call that may fail."""


@pytest.mark.parametrize(("where", "at"), [(w, at) for w, n in CALLS.items() for at in range(n)])
def test_a_full_or_failing_disk_raises_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, at: int
) -> None:
    save(tmp_path, 1)
    before = tiny.contents(tmp_path)
    home = {"write_tensors": stored, "fsync": os}.get(where, Path)
    fault = Fails(getattr(home, where), at, FAULTS[where])
    with monkeypatch.context() as patch:
        patch.setattr(home, where, fault)
        patch.setattr(interruptions, "WAIT", 0.0)
        with pytest.raises(ExhaustedError, match=r"No space left on device|Input/output error"):
            save(tmp_path, 2)
    newest, problems = latest_checkpoint(tmp_path)
    assert newest is not None
    assert problems == []
    assert {k: v for k, v in tiny.contents(tmp_path).items() if k in before} == before
    save(tmp_path, 3)
    assert not list(tmp_path.glob(".*"))


def test_every_file_and_folder_is_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = atomic._sync, Path.rename
    monkeypatch.setattr(atomic, "_sync", lambda p: (done.append(p.name), sync(p)))
    monkeypatch.setattr(Path, "rename", lambda p, to: (done.append("RENAME"), rename(p, to))[1])
    [path] = save(tmp_path, 1)
    before, after = done[: done.index("RENAME")], done[done.index("RENAME") + 1 :]
    assert {*before} == {p.name for p in path.iterdir()} | {".step-00000001.partial"}
    assert before[-1] == ".step-00000001.partial"
    assert after == [tmp_path.name]


def test_weights_are_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "best.safetensors"
    save_weights(file, {"w": torch.ones(3)})
    monkeypatch.setattr(os, "fsync", Fails(os.fsync, 0, OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        save_weights(file, {"w": torch.zeros(3)})
    tiny.same(load_weights(file), {"w": torch.ones(3)})
    monkeypatch.undo()
    save_weights(file, {"w": torch.zeros(3)})
    tiny.same(load_weights(file), {"w": torch.zeros(3)})
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("size", [0, 4, 30, -1])
def test_damaged_weights_are_named(tmp_path: Path, size: int) -> None:
    file = tmp_path / "best.safetensors"
    with pytest.raises(InputError, match=r"best\.safetensors: no such file"):
        load_weights(file)
    save_weights(file, {"w": torch.ones(30)})
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(InputError, match=r"best\.safetensors: damaged"):
        load_weights(file)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_an_intact_checkpoint_survives_a_kill_at_any_moment(tmp_path: Path, kills: int) -> None:
    tiny.kill_repeatedly("save", tmp_path, kills)
    assert latest_checkpoint(tmp_path)[0] is not None


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3)


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
