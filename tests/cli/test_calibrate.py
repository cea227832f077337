"""`addnorm calibrate` measures again; `addnorm info --machine` shows what was measured."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import write_recipe

from addnorm.nn.choices import KernelChoices
from addnorm.tuning import calibration

Command = Callable[..., tuple[int, str, str]]


def test_it_is_measured_once_shown_and_measured_again(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    monkeypatch.delenv("ADDNORM_KERNELS")
    times: list[int] = []

    def measure(machine: calibration.Machine) -> calibration.Calibration:
        times.append(len(times))
        chosen = KernelChoices(few_queries=len(times))
        return calibration.Calibration(
            machine=machine,
            choices=chosen,
            figures={},
            seconds=0.5,
            date="2026-11-22",
            offered=tuple(calibration.VALUES),
        )

    monkeypatch.setattr(calibration, "calibrate", measure)
    for command in (("info", "--machine"), ("info", "--machine"), ("calibrate",)):
        code, out, _ = addnorm(*command)
        assert code == 0
        assert "measured on 2026-11-22 in 0.5 s" in out
    assert len(times) == 2
    assert "few_queries" in out


def test_what_a_person_gives_is_shown(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "calibrate", lambda _: pytest.fail("measured"))
    file = tmp_path / "kernels.json"
    file.write_text('{"few_queries": 77}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    code, out, _ = addnorm("info", "--machine")
    assert code == 0
    assert f"givenbyADDNORM_KERNELS={file}" in "".join(out.split())  # in lines
    assert "77" in out


@pytest.mark.parametrize("command", ["train", "demo", "info"])
def test_a_damaged_file_is_named_before_anything_is_written(
    command: str, addnorm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, out = tmp_path / "kernels.json", tmp_path / "run"
    file.write_text('{"products": "onednn"}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    words = {
        "train": (write_recipe(tmp_path, "language"), "--out", out),
        "demo": ("--out", out),
        "info": ("--machine",),
    }
    before = sorted(tmp_path.rglob("*"))
    code, said, message = addnorm(command, *words[command])
    assert (code, said) == (2, "")
    assert message == (
        f"addnorm: ADDNORM_KERNELS: {file}: products is not a field. Did you mean 'product'? "
        "Valid: product, bfloat16_product, bias, few_queries, short_keys, many_scores, "
        "logits_at_once, attention, attention_forward, causal_attention, activation, "
        "cross_entropy, add_norm, keep_pages.\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_info_without_anything_says_what_it_takes(addnorm: Command) -> None:
    code, _, said = addnorm("info")
    assert code == 2
    assert "name a run folder or a recipe, or give --machine" in said
