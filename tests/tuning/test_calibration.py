"""Calibration: each choice falls on the faster side, is kept, and disturbs nothing."""

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.compiler import has_compiler
from addnorm.machine import pages_can_be_kept
from addnorm.nn.choices import UNLIMITED, KernelChoices, use_choices
from addnorm.nn.linear import multiplies_bfloat16
from addnorm.tuning import calibration
from addnorm.tuning.calibration import (
    HOUR,
    Machine,
    calibrate,
    calibrated,
    keep,
    kept_file,
    read_kept,
    rounds_of,
    this_machine,
)

Cost = Callable[[KernelChoices], float]


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cost], Callable[[], float]]:
    """A clock by which the work that has just run took what its choices cost."""
    last: list[KernelChoices] = [KernelChoices()]

    def noted(chosen: KernelChoices | None) -> Any:
        if chosen is not None:
            last.append(chosen)
        return use_choices(chosen)

    monkeypatch.setattr(calibration, "use_choices", noted)
    monkeypatch.setattr(calibration, "LIMIT", 1e30)
    monkeypatch.setattr(calibration, "ROUNDS", 1)
    monkeypatch.setattr(calibration, "involuntary_switches", lambda: 0)

    def of(cost: Cost) -> Callable[[], float]:
        times = itertools.accumulate(cost(last[-1]) for _ in itertools.count())
        return lambda: next(times)

    return of


SIDES: dict[str, tuple[Cost, Cost]] = {
    "product": (lambda c: 2 - (c.product == "torch"), lambda c: 2 - (c.product == "onednn")),
    "bfloat16_product": (
        lambda c: 1 + (c.bfloat16_product == "operator"),
        lambda c: 1 + (c.bfloat16_product == "torch"),
    ),
    "bias": (lambda c: 1 + (c.bias == "fused"), lambda c: 1 + (c.bias == "torch")),
    "few_queries": (lambda c: 1 + (c.few_queries > 0), lambda c: 2 - (c.few_queries > 0)),
    "short_keys": (lambda c: 1 + (c.short_keys > 0), lambda c: 2 - (c.short_keys > 0)),
    "many_scores": (lambda c: 1 + (c.many_scores < UNLIMITED), lambda c: 1 + (c.many_scores > 1e9)),
    "logits_at_once": (lambda c: 2**23 / c.logits_at_once, lambda c: c.logits_at_once / 2**20),
    "attention": (
        lambda c: 1 + (c.attention == "operator"),
        lambda c: 2 - (c.attention == "operator"),
    ),
    "attention_forward": (
        lambda c: 1 + (c.attention_forward == "operator"),
        lambda c: 1 + (c.attention_forward == "torch"),
    ),
    "causal_attention": (
        lambda c: 1 + (c.causal_attention == "operator"),
        lambda c: 1 + (c.causal_attention == "torch"),
    ),
    "activation": (
        lambda c: 1 + (c.activation == "operator"),
        lambda c: 1 + (c.activation == "torch"),
    ),
    "cross_entropy": (
        lambda c: 1 + (c.cross_entropy == "operator"),
        lambda c: 1 + (c.cross_entropy == "torch"),
    ),
    "add_norm": (
        lambda c: 1 + (c.add_norm == "operator"),
        lambda c: 1 + (c.add_norm == "torch"),
    ),
    "keep_pages": (lambda c: 1 + c.keep_pages, lambda c: 2 - c.keep_pages),
}
EXPECTED: dict[str, tuple[Any, Any]] = {
    "product": ("torch", "onednn"),
    "bfloat16_product": (
        "torch" if multiplies_bfloat16 or not has_compiler() else "operator",
        "operator" if has_compiler() else "torch",
    ),
    "bias": ("torch", "fused" if multiplies_bfloat16 else "torch"),
    "few_queries": (0, 8),
    "short_keys": (0, 1024 if multiplies_bfloat16 else 0),
    "many_scores": (UNLIMITED if multiplies_bfloat16 else 2**22, 2**22),
    "logits_at_once": (2**23, 2**20),
    "attention": ("torch", "operator" if multiplies_bfloat16 and has_compiler() else "torch"),
    "attention_forward": (
        "torch",
        "operator" if multiplies_bfloat16 and has_compiler() else "torch",
    ),
    "causal_attention": ("torch", "operator" if has_compiler() else "torch"),
    "activation": ("torch", "operator" if has_compiler() else "torch"),
    "cross_entropy": ("torch", "operator" if has_compiler() else "torch"),
    "add_norm": ("torch", "operator" if has_compiler() else "torch"),
    "keep_pages": (not pages_can_be_kept(), True),
}


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", SIDES)
def test_each_choice_can_fall_either_way(name: str, side: int, clock_of: Any) -> None:
    found = calibrate(this_machine(), clock_of(SIDES[name][side]))
    assert getattr(found.choices, name) == EXPECTED[name][side]


@pytest.mark.long
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_the_fastest_of_three_products_is_chosen(clock_of: Any) -> None:
    costs = {"torch": 3, "onednn": 2, "operator": 1}
    found = calibrate(this_machine(), clock_of(lambda c: costs[c.product]))
    assert found.choices.product == "operator"
    assert {*found.figures["float32 products"]} == {*costs}


@pytest.mark.long
def test_where_bfloat16_is_emulated_nothing_of_it_is_measured(
    clock_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("addnorm.tuning.calibration.multiplies_bfloat16", False)
    found = calibrate(this_machine(), clock_of(SIDES["product"][1]))
    assert found.choices == KernelChoices(
        product="onednn",
        bfloat16_product="operator" if has_compiler() else "torch",
        few_queries=0,
        short_keys=0,
        keep_pages=not pages_can_be_kept(),
    )
    assert not any("bfloat16" in what for what in found.figures)


@pytest.mark.long
def test_pages_are_kept_where_neither_can_be_measured(
    clock_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("addnorm.machine.__file__", "/no/such/script.py")
    found = calibrate(this_machine(), clock_of(SIDES["keep_pages"][0]))
    assert found.choices.keep_pages
    assert not any("MiB" in what for what in found.figures)


@pytest.mark.long
def test_within_noise_the_first_wins(clock_of: Any) -> None:
    """torch's own, and the operator of products, which wins more in a step than alone."""

    def cost(chosen: KernelChoices) -> float:
        return 1.0 if chosen.product == "onednn" or chosen.bias == "fused" else 1.03

    found = calibrate(this_machine(), clock_of(cost)).choices
    assert found.product == ("operator" if has_compiler() else "torch")
    assert found.bias == "torch"


@pytest.mark.long
def test_only_few_queries_may_be_few(clock_of: Any) -> None:
    found = calibrate(this_machine(), clock_of(lambda c: 1 if c.few_queries in (0, 1) else 2))
    assert found.choices.few_queries == 0
    found = calibrate(
        this_machine(), clock_of(lambda c: [2, 1][c.few_queries == 1] + (c.few_queries > 1))
    )
    assert found.choices.few_queries == 1


@pytest.mark.long
def test_a_busy_machine_keeps_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock_of: Any
) -> None:
    """Where it takes too long, or the system takes the processor away too often."""
    monkeypatch.setattr(calibration, "LIMIT", 2.0)
    slow = calibrate(this_machine(), itertools.count(0.0, 0.3).__next__)
    monkeypatch.setattr(calibration, "LIMIT", 1e30)
    assert slow.disturbed
    switches = itertools.count(0, 10**6)
    monkeypatch.setattr(calibration, "involuntary_switches", switches.__next__)
    busy = calibrate(this_machine(), clock_of(SIDES["product"][1]))
    assert busy.disturbed
    assert slow.choices == busy.choices == KernelChoices()
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    calm = replace(busy, disturbed=False, choices=KernelChoices(few_queries=1))
    found = iter([busy, calm])
    monkeypatch.setattr(calibration, "calibrate", lambda _: next(found))
    assert calibrated() == calibrated() == busy
    [file] = (tmp_path / "kernels").iterdir()
    os.utime(file, (0, 0))  # more than an hour ago
    assert calibrated() == calm
    os.utime(file, (0, 0))
    assert calibrated() == calm


@pytest.mark.long
def test_nothing_is_disturbed() -> None:
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    with torch.inference_mode():
        calibrate(this_machine())
        assert torch.is_inference_mode_enabled()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Measuring is counted, not done."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    times: list[int] = []

    def measure(machine: Any) -> Any:
        times.append(len(times))
        return calibration.Calibration(
            machine=machine,
            choices=KernelChoices(few_queries=1),
            figures={"products": {"torch": 1.0, "onednn": 2.0}},
            seconds=0.5,
            date="2026-11-22",
            offered=tuple(calibration.VALUES),
        )

    monkeypatch.setattr(calibration, "calibrate", measure)
    return times


def test_it_is_kept_and_found(counted: list[int], tmp_path: Path) -> None:
    first = calibrated()
    assert calibrated() == first
    assert len(counted) == 1
    calibrated(again=True)
    assert len(counted) == 2
    [file] = (tmp_path / "kernels").iterdir()
    assert json.loads(file.read_text())["choices"]["few_queries"] == 1


def test_a_file_from_before_a_choice_is_measured_again(counted: list[int], tmp_path: Path) -> None:
    """Or what is new would stay with its default for as long as the file."""
    calibrated()
    [file] = (tmp_path / "kernels").iterdir()
    kept = json.loads(file.read_text())
    for offered in (kept["offered"][:-1], None):
        kept["offered"] = offered
        file.write_text(json.dumps({k: v for k, v in kept.items() if v is not None}))
        calibrated()
    assert len(counted) == 3


DAMAGE = ["", "{", '{"choices": {}}', "[]", "[" * 200_000, "\0"]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_is_measured_again(damage: str, counted: list[int], tmp_path: Path) -> None:
    calibrated()
    [file] = (tmp_path / "kernels").iterdir()
    file.write_text(damage)
    calibrated()
    assert len(counted) == 2


@pytest.mark.parametrize(
    ("what", "absurd"),
    [
        ('"few_queries": 1', f'"few_queries": {10**30}'),
        ('"few_queries": 1', '"few_queries": 3'),
        ('"logits_at_once": 4194304', '"logits_at_once": 1'),
        ('"torch": 1.0', '"torch": -1.0'),
        ('"torch": 1.0', '"torch": 0'),
        ('"torch": 1.0', '"torch": NaN'),
        ('"torch": 1.0', '"torch": 1e999'),
    ],
)
def test_what_cannot_have_been_measured_is_measured_again(
    what: str, absurd: str, counted: list[int], tmp_path: Path
) -> None:
    calibrated()
    [file] = (tmp_path / "kernels").iterdir()
    text = file.read_text()
    assert what in text
    file.write_text(text.replace(what, absurd))
    calibrated()
    assert len(counted) == 2


def test_a_pipe_in_the_place_of_the_file_is_replaced(counted: list[int], tmp_path: Path) -> None:
    calibrated()
    [file] = (tmp_path / "kernels").iterdir()
    file.unlink()
    os.mkfifo(file)
    calibrated()
    calibrated()
    assert len(counted) == 2


def test_of_the_future_is_not_recent(
    monkeypatch: pytest.MonkeyPatch, counted: list[int], tmp_path: Path
) -> None:
    measure = calibration.calibrate
    monkeypatch.setattr(calibration, "calibrate", lambda m: replace(measure(m), disturbed=True))
    calibrated()
    calibrated()
    assert len(counted) == 1
    [file] = (tmp_path / "kernels").iterdir()
    os.utime(file, (2e10, 2e10))
    calibrated()
    assert len(counted) == 2


def test_without_a_home_nothing_is_kept(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("addnorm.tuning.calibration.cache_folder", no_home)
    assert calibrated() == calibrated()
    assert len(counted) == 2


def test_a_kernel_that_raises_loses() -> None:
    def fails() -> None:
        raise RuntimeError("could not create a primitive")

    attempts = itertools.count()

    def fails_later() -> None:
        assert next(attempts) < 2

    def rounds(**works: Callable[[], object]) -> dict[str, list[float]]:
        return rounds_of(works, itertools.count(0.0, 0.1).__next__, until=1e9)

    found = rounds(torch=lambda: None, onednn=fails, other=fails_later)
    assert [*found] == ["torch"]
    assert found["torch"]
    with pytest.raises(RuntimeError, match="primitive"):
        rounds(torch=fails, onednn=lambda: None)


@pytest.mark.long
def test_without_onednn_s_operator_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch, clock_of: Any
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr("addnorm.nn.linear._pointwise", fails)
    found = calibrate(this_machine(), clock_of(SIDES["product"][1]))
    assert found.choices.product == ("operator" if has_compiler() else "torch")
    assert found.choices.bias == "torch"
    assert "onednn" not in found.figures["float32 products"]


def test_another_machine_is_measured(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated()
    monkeypatch.setattr(calibration, "processor", lambda: "another")
    calibrated()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.undo()
    assert len(counted) == 2


def test_limits_of_libraries_make_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = this_machine()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert this_machine() != before
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in this_machine().processor


def test_a_read_only_folder_of_caches_does_no_harm(
    counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").write_text("a file")
    assert calibrated().choices.few_queries == 1
    assert json.dumps(counted) == "[0]"


def test_the_callers_modes_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fake tensors, hooks on what is saved, and counted operations are the caller's alone."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    saved: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    counter = FlopCounterMode(display=False)
    with FakeTensorMode(), counter, hooks:
        found = calibrated(again=True)
    assert not saved
    assert not counter.get_total_flops()
    assert all(ms > 0.01 for times in found.figures.values() for ms in times.values())


HERE = Machine(processor="a 486", threads=1, torch="2", addnorm="1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that holds something."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    found = kept_file("a 486,", "1 threads")
    assert found == tmp_path / "kernels" / "a-486-1-threads.json"
    keep(found, HERE)
    return found


def test_it_is_found_and_known_to_be_recent(file: Path) -> None:
    assert read_kept(file, Machine) == (HERE, True)
    written = file.stat().st_mtime
    for age in (HOUR + 1, -HOUR):
        os.utime(file, (written - age, written - age))
        assert read_kept(file, Machine) == (HERE, False)
    assert [one.name for one in file.parent.iterdir()] == [file.name]


DAMAGED_BYTES = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b"[" * 60_000,
    b"[" * 200_000,
    b'{"processor": "a 486"}',
]


@pytest.mark.parametrize("damage", DAMAGED_BYTES, ids=range(len(DAMAGED_BYTES)))
def test_a_damaged_file_counts_as_missing(damage: bytes, file: Path) -> None:
    file.write_bytes(damage)
    assert read_kept(file, Machine) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_is_not_waited_for(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    assert read_kept(file, Machine) is None
    keep(file, HERE)
    assert read_kept(file, Machine) == (HERE, True)


def test_where_there_is_no_place_nothing_is_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(calibration, "cache_folder", no_home)
    assert kept_file("a 486") is None
    keep(None, HERE)
    assert read_kept(None, Machine) is None
    file.unlink()
    file.mkdir()
    (file / "full").touch()
    keep(file, HERE)
    assert read_kept(file, Machine) is None
