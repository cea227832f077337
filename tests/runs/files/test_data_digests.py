"""A run that goes on has the data that it began with, or says what has changed."""

from pathlib import Path

import pytest
from tests.runs.tiny import RECIPES, quiet, said, train_tiny, write_recipe

from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.errors import InputError
from addnorm.runs.files.data_digests import DATA, check_same_data, data_digests, write_data_digests
from addnorm.runs.files.digests import DIGESTS
from addnorm.runs.files.resuming import resumed_recipe
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.train_run import TrainingSetup, train_run

TRAIN = {
    "language": "play.txt",
    "translation": "train.de",
    "classification": "train.txt",
    "multi_label": "topics.tsv",
    "regression": "stars.jsonl",
    "tagging": "train.conll",
}
CHANGES = {
    "language": ("be:", "me:"),
    "translation": ("zwei", "rote"),
    "classification": ("bad a", "good a"),
    "multi_label": ("fine day\tweather,joy", "fine day\tweather"),
    "regression": ("4.5", "4.6"),
    "tagging": ("in O", "in B-PER"),
}
"""A word that is known already, or another target: no example more or less."""


def go_on(run: Path) -> str:
    console = quiet()
    train_run(resumed_recipe(run, {}), run, resume=True, console=console)
    return said(console)


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8")


@pytest.mark.parametrize("task", RECIPES)
def test_other_training_data_are_refused_and_nothing_is_lost(task: str, tmp_path: Path) -> None:
    run = train_tiny(tmp_path, task)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    original = (tmp_path / TRAIN[task]).read_bytes()
    change(tmp_path / TRAIN[task], *CHANGES[task])
    with pytest.raises(InputError, match=r"training data have changed: the same number of"):
        go_on(run)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    (tmp_path / TRAIN[task]).write_bytes(original)
    assert "changed" not in go_on(run)
    assert (run / DIGESTS).is_file()


def test_a_label_that_the_run_has_not_says_that_the_data_changed(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    change(tmp_path / "train.txt", "good a", "goood a")
    with pytest.raises(InputError, match=r"unknown label 'goood'.*Did you mean 'good'") as raised:
        go_on(run)
    assert raised.value.__notes__ == ["a run is resumed with the data that it began with"]


def test_more_examples_are_counted(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    with (tmp_path / "train.txt").open("a") as file:
        file.write("good a fine day\n")
    with pytest.raises(InputError, match="16 examples when the run began, and 17 now"):
        go_on(run)


def test_other_validation_data_are_told_once(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    change(tmp_path / "valid.txt", "bad wet and cold\n", "")
    assert "the valid data have changed: 4 examples when the run began, and 3 now" in go_on(run)
    assert "changed" not in go_on(run)


def test_the_same_data_elsewhere_are_the_same(tmp_path: Path) -> None:
    run, other = train_tiny(tmp_path, "language"), tmp_path / "moved"
    other.mkdir()
    (tmp_path / "play.txt").rename(other / "play.txt")
    recipe = resumed_recipe(run, {"data.root": str(other), "train.steps": "6"})
    console = quiet()
    assert train_run(recipe, run, resume=True, console=console).recipe.train.steps == 6
    assert "have changed" not in said(console)


def test_a_run_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language")
    expected = (run / DATA).read_text()
    (run / DATA).unlink()
    assert "no data.json, so nobody knows whether its data are those" in go_on(run)
    assert (run / DATA).read_text() == expected
    (run / DATA).write_text('{"train": 7}')
    with pytest.raises(InputError, match=r"data.json: damaged"):
        go_on(run)
    (run / DATA).write_text("{}")
    with pytest.raises(InputError, match="0 examples when the run began, and 1 now"):
        go_on(run)


def encoded(folder: Path, task: str) -> EncodedCorpus:
    return TrainingSetup(read_recipe(write_recipe(folder, task))).encoded


def test_text_kept_on_the_disk_has_the_digest_of_text_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from addnorm.data.ids import cache as stored

    in_memory = data_digests(encoded(tmp_path, "language"))
    monkeypatch.setattr(stored, "SMALLEST", 0)
    for _ in range(2):  # written, then read
        assert data_digests(encoded(tmp_path, "language")) == in_memory
    assert set(in_memory) == {"train", "valid", "test"}


def test_images(tmp_path: Path) -> None:
    import torch

    from addnorm.data.ids.compact import Encoded

    def corpus(pixel: int) -> EncodedCorpus:
        pixels = torch.full((1, 2, 2), pixel, dtype=torch.uint8)
        return EncodedCorpus("classification", 0, 0, [Encoded(0, [], [1], pixels)])

    write_data_digests(tmp_path, corpus(3))
    assert not list(check_same_data(tmp_path, corpus(3)))
    with pytest.raises(InputError, match="the same number of examples, 1, and not the same ones"):
        list(check_same_data(tmp_path, corpus(4)))
