"""The names of the variables of a run: kept, copied, and what is said where they are damaged."""

from pathlib import Path

import pytest
import torch

from addnorm.data import Corpus, LabelledSeries, Text
from addnorm.errors import InputError
from addnorm.runs.variables import copy_variables, read_variables, variables_of, write_variables


def test_names_are_kept_and_copied(tmp_path: Path) -> None:
    names = ("up", "d\u00f6wn")
    assert variables_of(Corpus(train=[LabelledSeries(torch.zeros(2, 3), "x", names)])) == names
    write_variables(tmp_path / "a", names)
    (tmp_path / "b").mkdir()
    copy_variables(tmp_path / "a", tmp_path / "b")
    assert read_variables(tmp_path / "a") == read_variables(tmp_path / "b") == names


def test_other_runs_have_none(tmp_path: Path) -> None:
    write_variables(tmp_path / "a", variables_of(Corpus(train=[Text("a")])))
    copy_variables(None, tmp_path / "a")
    copy_variables(tmp_path, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert variables_of(None) == ()


@pytest.mark.parametrize("text", [None, "", "[]", "[1]", "{}", "[[["])
def test_damage_is_named(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "variables.json").write_text(text)
    said = "missing" if text is None else "damaged"
    with pytest.raises(InputError, match=rf"variables.json: {said}"):
        read_variables(tmp_path)
    with pytest.raises(InputError, match="in no folder"):
        read_variables(None)
