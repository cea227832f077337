"""Resuming a run from its folder alone, and settings that may not change."""

import shlex
from pathlib import Path

import pytest
from tests.runs.tiny import train_tiny

from addnorm.errors import InputError
from addnorm.runs.resuming import resume_command, resumed_recipe
from addnorm.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("resuming"), "language")


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [("train.steps", "9", 9), ("train.save_every", "3", 3), ("train.device", "cpu", "cpu")],
)
def test_what_may_change(run: Path, name: str, value: str, changed: object) -> None:
    recipe = resumed_recipe(run, {name: value})
    assert getattr(recipe.train, name.removeprefix("train.")) == changed


@pytest.mark.parametrize("name", ["model.d_model", "train.lr", "data.train", "tokenizer.kind"])
def test_what_may_not_change_is_named(run: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"^`{name}`: a run that goes on keeps it.* May change: "):
        resumed_recipe(run, {name: "7"})


@pytest.mark.parametrize(
    ("name", "hint"), [("train.lr", None), ("train.step", "train.steps"), ("train.sav", None)]
)
def test_a_hint_is_at_a_field_of_a_like_name(run: Path, name: str, hint: str | None) -> None:
    with pytest.raises(InputError) as caught:
        resumed_recipe(run, {name: "7"})
    assert ("Did you mean" in str(caught.value)) == (hint is not None)
    assert hint is None or f"Did you mean '{hint}'" in str(caught.value)


def test_the_command_of_a_folder_with_a_blank(run: Path) -> None:
    recipe = Run.open(run).recipe
    words = shlex.split(resume_command(Path("my runs/r"), recipe))
    assert words == ["addnorm", "train", "--resume", "my runs/r"]
