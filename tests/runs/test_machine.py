"""A run goes on with the kernels that it began with, and says where that is another machine."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.runs.tiny import quiet, said, train_tiny, write_recipe
from torch import Tensor

from addnorm.errors import InputError
from addnorm.nn.choices import KernelChoices, choices, use_choices
from addnorm.runs import machine
from addnorm.runs.machine import EARLIER, FILE, TRAINED_ON, kernels_of, machine_table
from addnorm.runs.recipe import read_recipe
from addnorm.runs.training import train_run

KEEP = {"train.schedule.warmup": "1", "train.schedule.decay": "0"}
TORCH, ONEDNN = KernelChoices(product="torch"), KernelChoices(product="onednn", few_queries=0)


def weights(
    folder: Path, *, kernels: KernelChoices, steps: int, resume: bool = False
) -> list[Tensor]:
    recipe = read_recipe(write_recipe(folder, "language"), {"train.steps": str(steps), **KEEP})
    with use_choices(kernels):
        train_run(recipe, folder / "run", resume=resume, console=quiet())
    return [*load_file(folder / "run" / "model.safetensors").values()]


def test_a_run_that_goes_on_is_equal_to_the_bit_whatever_is_measured_now(tmp_path: Path) -> None:
    for name in ("whole", "parts", "other"):
        (tmp_path / name).mkdir()
    whole = weights(tmp_path / "whole", kernels=TORCH, steps=4)
    weights(tmp_path / "parts", kernels=TORCH, steps=2)
    parts = weights(tmp_path / "parts", kernels=ONEDNN, steps=4, resume=True)
    assert all(a.equal(b) for a, b in zip(whole, parts, strict=True))
    other = weights(tmp_path / "other", kernels=ONEDNN, steps=4)
    for a, b in zip(whole, other, strict=True):
        assert (a - b).abs().max() < 1e-4


def with_a_checkpoint(folder: Path) -> None:
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)


def test_what_the_run_began_with_is_used(tmp_path: Path) -> None:
    console = quiet()
    with use_choices(ONEDNN):
        with kernels_of(tmp_path, console):
            assert choices() == ONEDNN
        with_a_checkpoint(tmp_path)
        with use_choices(TORCH), kernels_of(tmp_path, console):
            assert choices() == ONEDNN
        assert choices() == ONEDNN
    assert said(console) == ""


def test_a_file_without_a_run_decides_nothing(tmp_path: Path) -> None:
    """What a run left that never came to a checkpoint."""
    with use_choices(ONEDNN), kernels_of(tmp_path, quiet()):
        pass
    with use_choices(TORCH), kernels_of(tmp_path, quiet()):
        assert choices() == TORCH
    with_a_checkpoint(tmp_path)
    with use_choices(ONEDNN), kernels_of(tmp_path, quiet()):
        assert choices() == TORCH


def test_a_wrong_file_of_kernels_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDNORM_KERNELS", str(tmp_path / "none.json"))
    recipe = read_recipe(write_recipe(tmp_path, "language"))
    with pytest.raises(InputError, match=r"^ADDNORM_KERNELS: .*none.json: No such file"):
        train_run(recipe, tmp_path / "run", resume=False, console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_earlier_version_keeps_what_there_was(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language")
    (run / FILE).unlink()
    with use_choices(TORCH), kernels_of(run, quiet()):
        assert choices() == EARLIER
    assert '"product": "onednn"' in (run / FILE).read_text()


def test_every_move_to_another_machine_is_said_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine.this_machine()
    there = replace(here, processor="a 486", threads=99)
    with kernels_of(tmp_path, quiet()):
        pass
    with_a_checkpoint(tmp_path)

    def words_on(one: machine.Machine) -> str:
        console = quiet()
        monkeypatch.setattr(machine, "this_machine", lambda: one)
        with kernels_of(tmp_path, console):
            pass
        return said(console)

    assert words_on(here) == ""
    moved = words_on(there)
    assert "and is 'a 486' from here on: equal up to rounding" in moved
    assert "and is 99 from here on" in moved
    assert "torch was" not in moved
    assert words_on(there) == ""
    assert "processor was 'a 486' so far" in words_on(here)
    kept = TRAINED_ON.validate_json((tmp_path / FILE).read_bytes())
    assert (kept.machine, *kept.moved_to) == (here, there, here)


@pytest.mark.parametrize("text", ["", "{", '{"machine": 3}', '{"kernels": {"product": "mkl"}}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    with_a_checkpoint(tmp_path)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError, match=FILE), kernels_of(tmp_path, quiet()):
        pass


def test_the_table_has_every_choice_and_what_it_rests_on() -> None:
    from addnorm.nn.calibration import Calibration

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
            )
        )
    )
    shown = said(console)
    assert "torch 2.5, onednn 1.25" in shown
    assert "measured on 2026-11-22 in 0.7 s" in shown
    for field in ("product", "few_queries", "keep_pages"):
        assert field in shown
    console = quiet()
    given = KernelChoices(product="torch", few_queries=0)
    found = Calibration(
        machine=machine.this_machine(), choices=ONEDNN, figures={}, seconds=0.7, date=""
    )
    console.print(machine_table(found, given))
    assert "torch (ADDNORM_KERNELS)" in said(console)
    assert said(console).count("ADDNORM_KERNELS") == 1
