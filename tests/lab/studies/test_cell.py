"""A cell: what it answers survives a file, and a damaged file is no answer."""

from pathlib import Path

import pytest

from addnorm.lab.studies.cell import FIGURES, FIGURES_OF, Figures, read_figures, write_figures

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


def test_figures_of_another_cell_are_not_believed(tmp_path: Path) -> None:
    found = Figures(state="finished", split="valid", scores={}, steps=1, tokens=1, seconds=1.0)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    write_figures(tmp_path / "one" / FIGURES, found)
    assert read_figures(tmp_path / "one" / FIGURES) == found
    (tmp_path / "other" / FIGURES).write_bytes((tmp_path / "one" / FIGURES).read_bytes())
    assert read_figures(tmp_path / "other" / FIGURES) is None
