"""A run goes on with the kernels that it began with, and says where that is another machine."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.runs.tiny import quiet, said, train_tiny, write_recipe
from torch import Tensor

from addnorm.errors import InputError
from addnorm.nn.choices import KernelChoices, choices, use_choices
from addnorm.runs.files import training_machine as machine
from addnorm.runs.files.training_machine import (
    EARLIER,
    FILE,
    TRAINED_ON,
    TrainedOn,
    kernels_of,
    machine_table,
)
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.train_run import train_run
from addnorm.tuning import calibration

KEEP = {"train.schedule.warmup": "1", "train.schedule.decay": "0"}
TORCH, ONEDNN = KernelChoices(product="torch"), KernelChoices(product="onednn", few_queries=0)


def weights(
    folder: Path, *, kernels: KernelChoices, steps: int, resume: bool = False
) -> list[Tensor]:
    recipe = read_recipe(write_recipe(folder, "language"), {"train.steps": str(steps), **KEEP})
    with use_choices(kernels):
        train_run(recipe, folder / "run", resume=resume, console=quiet())
    return [*load_file(folder / "run" / "model.safetensors").values()]


def test_a_resumed_run_is_equal_to_the_bit_whatever_is_measured_now(tmp_path: Path) -> None:
    for name in ("whole", "parts", "other"):
        (tmp_path / name).mkdir()
    whole = weights(tmp_path / "whole", kernels=TORCH, steps=4)
    weights(tmp_path / "parts", kernels=TORCH, steps=2)
    parts = weights(tmp_path / "parts", kernels=ONEDNN, steps=4, resume=True)
    assert all(a.equal(b) for a, b in zip(whole, parts, strict=True))
    other = weights(tmp_path / "other", kernels=ONEDNN, steps=4)
    for a, b in zip(whole, other, strict=True):
        assert (a - b).abs().max() < 1e-4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with something to go on from."""
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    return tmp_path


def test_operators_of_another_machine_are_compiled_before_the_first_step(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(calibration, "has_operator", loaded.append)
    theirs = TrainedOn(machine=machine.this_machine(), kernels=KernelChoices(activation="operator"))
    (run / FILE).write_bytes(TRAINED_ON.dump_json(theirs))
    with kernels_of(run, quiet()):
        assert loaded == ["activation"]


def test_what_the_run_began_with_is_used(tmp_path: Path) -> None:
    console = quiet()
    with use_choices(ONEDNN), kernels_of(tmp_path, console):
        assert choices() == ONEDNN
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    with use_choices(TORCH):
        with kernels_of(tmp_path, console):
            assert choices() == ONEDNN
        assert choices() == TORCH
    assert said(console) == ""


def test_files_left_by_another_run_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint a run is new, so this machine or `ADDNORM_KERNELS` chooses."""
    with use_choices(ONEDNN), kernels_of(tmp_path, quiet()):
        pass
    (tmp_path / "kernels.json").write_text('{"few_queries": 5}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(tmp_path / "kernels.json"))
    monkeypatch.setattr("addnorm.nn.choices._of_machine", {})
    for _ in range(2):
        with use_choices(None), kernels_of(tmp_path, quiet()):
            assert choices() == KernelChoices(few_queries=5)
    assert '"few_queries": 5' in (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text("{")  # as little as a damaged one
    with use_choices(TORCH), kernels_of(tmp_path, quiet()):
        assert choices() == TORCH


def test_a_run_of_an_earlier_version_keeps_what_there_was(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language")
    (run / FILE).unlink()
    with use_choices(TORCH), kernels_of(run, quiet()):
        assert choices() == EARLIER
    assert '"product": "onednn"' in (run / FILE).read_text()


def test_every_change_of_machine_is_reported_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_choices(ONEDNN):
        run = train_tiny(tmp_path, "language")
    file, here = run / FILE, machine.this_machine()
    began = file.stat().st_mtime_ns
    there = replace(here, processor="a 486", threads=99)
    found: list[str] = []
    for place in (there, there, here, here, there):
        monkeypatch.setattr(machine, "this_machine", lambda place=place: place)
        console = quiet()
        with use_choices(TORCH), kernels_of(run, console):
            assert choices() == ONEDNN
        found.append(said(console))
    assert "and is 'a 486' from here on: equal up to rounding" in found[0]
    assert "threads was" in found[0]
    assert "and is 99 from here on" in found[0]
    assert "torch was" not in found[0]
    assert "processor was 'a 486' so far" in found[2]
    assert found[1] == found[3] == ""
    assert found[4] == found[0]
    kept = TRAINED_ON.validate_json(file.read_bytes())
    assert (kept.machine, kept.kernels) == (here, ONEDNN)
    assert [(one.step, one.machine) for one in kept.moves] == [(4, there), (4, here), (4, there)]
    assert file.stat().st_mtime_ns == began, "from which the time of a run is counted"


@pytest.mark.parametrize("text", ["", "{", '{"machine": 3}', '{"kernels": {"product": "mkl"}}'])
def test_a_damaged_file_is_named(text: str, run: Path) -> None:
    (run / FILE).write_text(text)
    with pytest.raises(InputError, match=FILE), kernels_of(run, quiet()):
        pass


def test_the_table_has_every_choice_and_what_it_rests_on() -> None:
    from addnorm.tuning.calibration import Calibration

    console = quiet()
    figures = {"float32 products": {"torch": 2.5, "onednn": 1.25}}
    console.print(
        machine_table(
            Calibration(
                machine=machine.this_machine(),
                choices=ONEDNN,
                figures=figures,
                seconds=0.7,
                date="2026-11-22",
                offered=(),
            )
        )
    )
    shown = said(console)
    assert "torch 2.5, onednn 1.25" in shown
    assert "measured on 2026-11-22 in 0.7 s" in shown
    for field in ("product", "few_queries", "keep_pages"):
        assert field in shown
