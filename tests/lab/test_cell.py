"""A cell: what it answers survives a file, and a damaged file is no answer."""

from pathlib import Path

import pytest
from tests.lab.small import small_study

from addnorm.lab.cell import FIGURES, FIGURES_OF, Figures, read_figures, run_cell, write_figures

SOME = Figures(
    state="finished",
    split="test",
    scores={"bleu": 12.5},
    steps=3,
    tokens=40,
    seconds=1.5,
    parameters=7,
    values={"loss": [1.0, 2.0]},
    texts=[("ein Haus", "das Haus")],
)


def test_figures_survive_a_file(tmp_path: Path) -> None:
    write_figures(tmp_path / FIGURES, SOME)
    assert read_figures(tmp_path / FIGURES) == SOME
    assert FIGURES_OF.validate_python(FIGURES_OF.dump_python(SOME, mode="json")) == SOME


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"state": "over"}'])
def test_a_damaged_file_is_no_answer(damage: str, tmp_path: Path) -> None:
    assert read_figures(tmp_path / FIGURES) is None
    (tmp_path / FIGURES).write_text(damage)
    assert read_figures(tmp_path / FIGURES) is None


@pytest.mark.long
def test_a_pause_is_measured_and_gone_on_from(tmp_path: Path) -> None:
    """Paused twice and gone on, it ends equal to the bit with one that never paused."""
    for name in ("paused", "whole"):
        (tmp_path / name).mkdir()
    paused = small_study(tmp_path / "paused", seeds=1)
    job = paused._job(paused.cells[0], 3)
    found = run_cell(job)
    assert (found.state, found.steps) == ("paused", 3)
    assert run_cell(job) == found
    assert not (paused.cells[0].folder / "model.safetensors").exists()
    later = run_cell(paused._job(paused.cells[0], 5))
    assert later.steps == 5
    assert run_cell(job) == found, "what it was at the first pause is kept"
    ended = run_cell(paused._job(paused.cells[0], None))
    whole = small_study(tmp_path / "whole", seeds=1)
    other = run_cell(whole._job(whole.cells[0], None))
    assert ended.scores == other.scores
    assert ended.values == other.values
    assert (ended.state, ended.steps, ended.tokens) == ("finished", 8, other.tokens)
    files = [one.cells[0].folder / "model.safetensors" for one in (paused, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_figures_of_another_cell_are_not_believed(tmp_path: Path) -> None:
    found = Figures(state="finished", split="valid", scores={}, steps=1, tokens=1, seconds=1.0)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    write_figures(tmp_path / "one" / FIGURES, found)
    assert read_figures(tmp_path / "one" / FIGURES) == found
    (tmp_path / "other" / FIGURES).write_bytes((tmp_path / "one" / FIGURES).read_bytes())
    assert read_figures(tmp_path / "other" / FIGURES) is None
