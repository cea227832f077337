"""The machine's ceilings are positive and plausible."""

from pathlib import Path

import pytest

from addnorm.bench.ceiling import MACHINE, ceilings, rate


def test_they_are_plausible() -> None:
    done = ceilings(Path(), widths=(64, 128), read_mib=8, for_seconds=0.01)()
    assert set(done.details) == {"f32", "bf16", "int8", "read"}
    assert all(1e7 < value < 1e16 for value in done.details.values())
    assert done.seconds > 0
    assert MACHINE.build is ceilings


def test_the_rate_is_that_of_the_fastest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.0, 0.2, 0.2, 0.3, 0.3, 0.7])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert rate(lambda: None, 10.0, for_seconds=0.5) == pytest.approx(100.0)
