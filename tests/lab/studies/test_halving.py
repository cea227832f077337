"""Halving: only what is decided to be worse is dropped, and the first is never dropped."""

from pathlib import Path

import numpy as np
import pytest
from tests.lab.small import recipe_file, small_study
from tests.lab.studies.test_summary import figures
from tests.lab.test_executor import Here

from addnorm.errors import InputError
from addnorm.lab.studies.halving import clearly_worse, halve
from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.study import Study, study_of
from addnorm.lab.studies.variants import Variant


def found(study: Study, *rows: list[float]) -> dict:
    return {
        v: {s: figures(x, state="paused", steps=4) for s, x in enumerate(row, start=1)}
        for v, row in enumerate(rows)
    }


def test_the_clearly_worse_are_dropped(tmp_path: Path) -> None:
    study = small_study(tmp_path, "layernorm", "rmsnorm", "none", seeds=4)
    best, open_, worse = [1.0, 1.1, 1.2, 1.3], [1.1, 1.0, 1.3, 1.2], [2.0, 2.1, 2.21, 2.3]
    dropped = clearly_worse(study, found(study, best, open_, worse), until=4)
    assert list(dropped) == [2]
    assert dropped[2].startswith("loss +1.0")
    assert "after 4 steps compared with norm=layernorm" in dropped[2]
    assert clearly_worse(study, found(study, worse, best, worse), until=4).keys() == {2}
    assert clearly_worse(study, found(study, best[:1], open_[:1], worse[:1]), until=4) == {}
    assert clearly_worse(study, {}, until=4) == {}


def test_ended_cells_are_not_compared_with_paused_ones(tmp_path: Path) -> None:
    study = small_study(tmp_path, "layernorm", "rmsnorm", "none", seeds=4)
    early = [2.0, 2.1, 2.21, 2.3]
    mixed = found(study, early, early, [3.0, 3.1, 3.2, 3.3])
    ended = {s: figures(x) for s, x in enumerate([0.5, 0.6, 0.71, 0.8], start=1)}
    mixed[1] = ended  # the best of all, at step 8 and not at 4
    assert list(clearly_worse(study, mixed, until=4)) == [2]
    assert "compared with norm=layernorm" in clearly_worse(study, mixed, until=4)[2]
    mixed[0] = ended
    assert clearly_worse(study, mixed, until=4) == {}


def test_epochs_have_no_quarter(tmp_path: Path) -> None:
    file = recipe_file(tmp_path)
    file.write_text(file.read_text().replace("steps = 8", "epochs = 2"))
    study = study_of(file, tmp_path / "study", {"model.norm": ["layernorm", "rmsnorm"]})
    with pytest.raises(InputError, match=r"give train\.steps"):
        halve(study, Here, 1, lambda *_: None)
    assert not (tmp_path / "study").exists()


@pytest.mark.long
def test_a_dropped_variant_is_reported_and_the_others_end(tmp_path: Path) -> None:
    vary = {"train.lr": ["0.01", "1e-7"]}
    file = recipe_file(tmp_path, steps=24)
    three = {"train.lr": [*vary["train.lr"], "0.02"]}
    study = study_of(file, tmp_path / "study", three, StudyOptions(seeds=5))
    dropped = halve(study, Here, 1, lambda *_: None)
    assert list(dropped) == [1]
    cells = [cell for cell in study.cells if cell.variant not in dropped]
    study.run(Here, 1, cells=cells)
    kept = study.figures()
    assert [len(kept[i]) for i in range(3)] == [5, 0, 5]
    assert all(one.steps == 24 for one in kept[0].values())


@pytest.mark.long
def test_equal_variants_are_seldom_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 simulated studies of five equal variants, five seeds each, over two looks."""
    monkeypatch.setattr("addnorm.lab.statistics.seeds_to_decide", lambda *_: None)  # slow
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        first = draw.normal(size=(5, 5))
        second = 0.7 * first + 0.71 * draw.normal(size=(5, 5))
        study = Named(["a", "b", "c", "d", "e"])
        looks = [
            clearly_worse(study, found(study, *map(list, look)), until=4)  # type: ignore[arg-type]
            for look in (first, second)
        ]
        wrong += any(looks)
    assert wrong / 300 <= 0.06


class Named:
    """What `clearly_worse` asks of a study."""

    metric, lower_is_better = "loss", True

    def __init__(self, names: list[str]) -> None:
        self.variants = [Variant(name=name, fields={}) for name in names]
