"""The picture of a sweep: a row for each scheme, in panels that its figures allow."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from addnorm.inspect.compression import compression_picture


@dataclass
class One:
    n_bytes: int
    scores: dict[str, float]
    speeds: dict[int, float] = field(default_factory=dict)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_each_model_has_a_point(suffix: str, tmp_path: Path) -> None:
    models = {
        "float32": One(400, {"loss": 1.5}, {1: 10.0, 16: 100.0}),
        "int8 dynamic": One(100, {"loss": 1.51}, {1: 20.0, 16: 130.0}),
    }
    file = tmp_path / f"sweep{suffix}"
    compression_picture(models, file)
    assert file.stat().st_size > 1000
    if suffix == ".svg":
        drawn = file.read_text()
        for label in ("int8 dynamic", "1.51", "0.25", "130", "tokens/s, 16 at once"):
            assert f"<!-- {label} -->" in drawn


def test_models_without_scores_or_speeds_are_drawn(tmp_path: Path) -> None:
    compression_picture({"float32": One(4, {}, {1: 2.0})}, tmp_path / "speed.png")
    compression_picture({"float32": One(4, {"loss": 2.0})}, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 1000
