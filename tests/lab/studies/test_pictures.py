"""Pictures of a study: drawn where there is something to draw, and nothing else."""

import json
from pathlib import Path

from tests.lab.small import small_study
from tests.lab.studies.test_summary import figures, put

from addnorm.lab.studies.pictures import curves_picture, forest_picture
from addnorm.lab.studies.summary import summarise


def test_nothing_measured_is_nothing_drawn(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    assert forest_picture(summarise(study), tmp_path) == ""
    assert curves_picture(study, tmp_path) == ""
    study.cells[0].folder.mkdir(parents=True)
    (study.cells[0].folder / "metrics.jsonl").write_text("")
    assert curves_picture(study, tmp_path) == ""


def test_curves_of_seeds_that_stopped_at_different_steps(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    put(study, {(v, s): figures(1.0 + v + s / 9) for v in (0, 1) for s in (1, 2)})
    for index, cell in enumerate(study.cells):
        lines = [
            {"step": n, "loss": 1 / n, "lr": 0.1, "grad_norm": 1.0} for n in range(1, 5 + index)
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (cell.folder / "metrics.jsonl").write_text(text)
    assert curves_picture(study, tmp_path) == "curves.svg"
    assert forest_picture(summarise(study), tmp_path) == "differences.svg"
    for name in ("curves", "differences"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
