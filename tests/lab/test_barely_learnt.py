"""Models that have barely learnt are told from those that have learnt something."""

import json
from pathlib import Path

import pytest

from addnorm.lab.barely_learnt import barely_learnt


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([4.0, 3.9, 3.8, 3.7], (4.0, 3.7)),
        ([4.0] * 10 + [3.0] * 10, None),
        ([4.0, 3.7, 3.9] * 10, (4.0, pytest.approx((4.0 + 3.7 + 3.9) / 3))),  # the last tenth
        ([4.0, 5.0], (4.0, 5.0)),
        ([4.0], None),
        ([], None),
        ([-1.0, -1.0], None),
    ],
)
def test_the_fall_of_the_loss_decides(
    tmp_path: Path, losses: list[float], expected: tuple[float, float] | None
) -> None:
    lines = [{"step": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    lines.append({"step": len(losses), "valid_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert barely_learnt(tmp_path) == expected
