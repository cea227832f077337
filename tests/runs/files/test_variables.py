"""The names of the variables of a run: kept, copied, and what is said where they are damaged."""

from pathlib import Path

import pytest
import torch

from addnorm.data import Corpus, LabelledSeries, Text
from addnorm.errors import InputError
from addnorm.runs.files.variables import read_variables, variables_of, write_variables


def test_names_are_kept(tmp_path: Path) -> None:
    names = ("up", "d\u00f6wn")
    assert variables_of(Corpus(train=[LabelledSeries(torch.zeros(2, 3), "x", names)])) == names
    write_variables(tmp_path / "a", names)
    assert read_variables(tmp_path / "a") == names


def test_other_runs_have_none(tmp_path: Path) -> None:
    write_variables(tmp_path / "a", variables_of(Corpus(train=[Text("a")])))
    assert read_variables(tmp_path / "a") == ()
    assert not (tmp_path / "a").exists()
    assert variables_of(None) == ()


@pytest.mark.parametrize("text", ["", "[]", "[1]", "{}", "[[["])
def test_damage_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "variables.json").write_text(text)
    with pytest.raises(InputError, match=r"variables.json: damaged"):
        read_variables(tmp_path)
