"""The product of a single row: the fastest is chosen and kept, and all are the same function."""

import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from addnorm.tuning import row_products
from addnorm.tuning.row_products import candidates, choose, few_rows, measured, row_product


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"loop": 1.0, "torch": 0.5, "onednn": 0.6}, "torch"),
        ({"loop": 1.0, "torch": 0.7, "onednn": 0.6}, "onednn"),
        ({"loop": 1.0, "torch": 0.95, "onednn": 2.0}, "loop"),
        ({"loop": 1.0, "torch": 3.0}, "loop"),
    ],
)
def test_the_fastest_beyond_the_noise_is_chosen(times: dict[str, float], expected: str) -> None:
    assert choose({name: [time, 1.1 * time] * 4 for name, time in times.items()}) == expected


def test_one_quick_round_chooses_nothing() -> None:
    """The best of a disturbed measurement may be any."""
    assert choose({"loop": [18.0] * 8, "torch": [17.5] * 7 + [0.5]}) == "loop"
    assert choose({"loop": [18.0] * 5 + [0.5] * 3, "torch": [0.6] * 8}) == "loop"


def fresh(dtype: torch.dtype) -> str:
    """As in a new process."""
    row_products._of_threads.cache_clear()
    return row_product(dtype)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[torch.dtype]]:
    """Measuring is counted, not done."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path))
    times: list[torch.dtype] = []

    def two(dtype: torch.dtype, rows: int) -> dict[str, object]:
        times.append(dtype)
        return {"loop": [2.0] * 4, "torch": [1.0] * 4}

    monkeypatch.setattr(row_products, "candidates", two)
    monkeypatch.setattr(row_products, "measured", lambda seconds: (seconds, False))
    yield times
    row_products._of_threads.cache_clear()


DAMAGE = [
    "",
    "{}",
    '{"choice": "loops", "disturbed": false}',
    "[]",
    "[" * 200_000,
    '{"choice": "torch", "milliseconds": {"loop": -1, "torch": 1}, "disturbed": false}',
    '{"choice": "torch", "milliseconds": {"loop": NaN, "torch": 1}, "disturbed": false}',
    '{"choice": "torch", "milliseconds": {"loop": 1}, "disturbed": false}',
    '{"choice": "torch", "milliseconds": 3, "disturbed": false}',
]


def test_it_is_measured_once_and_kept(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert fresh(torch.float32) == fresh(torch.float32) == "torch"
    assert asked == [torch.float32]
    [file] = (tmp_path / "kernels").iterdir()
    assert json.loads(file.read_text())["choice"] == "torch"
    assert version("addnorm") in file.name
    for damage in DAMAGE:
        file.write_text(damage)
        assert fresh(torch.float32) == "torch"
    assert len(asked) == 1 + len(DAMAGE)
    file.unlink()
    os.mkfifo(file)
    assert fresh(torch.float32) == fresh(torch.float32) == "torch"
    assert len(asked) == 2 + len(DAMAGE)
    file.unlink()
    monkeypatch.setattr(row_products, "has_compiler", lambda: False)
    assert fresh(torch.float32) == "loop"
    assert fresh(torch.float64) == fresh(torch.int8) == fresh(torch.int32) == "loop"
    assert row_product(torch.float32, 8) == "torch"
    assert few_rows(torch.float32) == few_rows(torch.float64) == 0


def test_another_number_of_threads_is_measured_again(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh(torch.float32)
    row_product(torch.float32)
    assert len(asked) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    row_product(torch.float32)
    assert len(asked) == 2


def test_without_a_home_it_is_measured_and_not_kept(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("addnorm.tuning.calibration.cache_folder", no_home)
    assert fresh(torch.float32) == fresh(torch.float32) == "torch"
    assert len(asked) == 2


def test_an_operator_that_is_switched_off_is_not_chosen(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"loop": [2.0] * 4, "operator": [1.0] * 4}
    monkeypatch.setattr(
        row_products, "candidates", lambda dtype, rows: asked.append(dtype) or times
    )
    monkeypatch.setattr(row_products, "has_operator", lambda name: True)
    assert fresh(torch.int8) == fresh(torch.int8) == "operator"
    assert len(asked) == 1
    monkeypatch.setattr(row_products, "has_operator", lambda name: False)
    times["operator"] = [3.0] * 4
    assert fresh(torch.int8) == "loop"
    assert len(asked) == 2


def test_a_busy_machine_keeps_loops_for_an_hour(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = [True]
    monkeypatch.setattr(row_products, "measured", lambda seconds: (seconds, busy[0]))
    assert fresh(torch.float32) == "loop"
    busy[0] = False
    assert fresh(torch.float32) == "loop"
    [file] = (tmp_path / "kernels").iterdir()
    hour_ago = file.stat().st_mtime - 3601
    os.utime(file, (hour_ago, hour_ago))
    assert fresh(torch.float32) == "torch"
    os.utime(file, (hour_ago, hour_ago))
    busy[0] = True
    assert fresh(torch.float32) == "torch"
    file.unlink()
    assert fresh(torch.float32) == "loop"
    os.utime(file, (2e10, 2e10))
    busy[0] = False
    assert fresh(torch.float32) == "torch", "what is of the future is not recent"


def test_few_rows_are_those_for_which_operators_are_faster(
    asked: list[torch.dtype], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def times(dtype: torch.dtype, rows: int) -> dict[str, list[float]]:
        return {"torch": [2.0] * 4, "operator": [0.1 * rows] * 4}

    monkeypatch.setattr(row_products, "candidates", times)
    monkeypatch.setattr(row_products, "has_operator", lambda name: True)
    assert few_rows(torch.bfloat16) == 16
    assert few_rows(torch.uint8) == 0
    assert len([*(tmp_path / "kernels").iterdir()]) == 2  # of 32 rows and of 16
    row_products._of_threads.cache_clear()
    assert few_rows(torch.bfloat16) == 16
    row_products._of_threads.cache_clear()
    monkeypatch.setattr(row_products, "has_operator", lambda name: False)
    monkeypatch.setattr(row_products, "candidates", lambda *_: {"torch": [2.0] * 4})
    assert few_rows(torch.bfloat16) == 0


def test_they_are_on_the_processor_whatever_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a product cannot be made, it is no candidate."""

    def fails(*_: object) -> None:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    with torch.device("meta"):
        works = candidates(torch.float32)
        for work in works.values():
            assert work().device.type == "cpu"
    monkeypatch.setattr(row_products, "packed_weight", fails)
    assert "onednn" not in candidates(torch.float32)
    works["onednn"] = fails
    times, _ = measured(works)
    assert [*times] == [name for name in works if name != "onednn"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_candidate_is_the_product() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.uint8):
        works = candidates(dtype)
        assert {"loop", "operator"} <= {*works}
        for work in works.values():
            y = torch.full((1, 2048), 1024.0, dtype=dtype if dtype.is_floating_point else None)
            torch.testing.assert_close(work(), y)
        times, _ = measured(works)
        assert all(second > 0 for seconds in times.values() for second in seconds)
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        works = candidates(dtype, 5)
        assert [*works] == ["operator", "torch"]
        for work in works.values():
            want = torch.full((5, 2048), 1024, dtype=torch.int32 if dtype is torch.int8 else dtype)
            assert torch.equal(work(), want)
