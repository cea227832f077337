"""Digests: any flipped byte of a finished run is detected, at load and on demand."""

import json
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import RECIPES, quiet, said, train_tiny, write_recipe

from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.errors import InputError
from addnorm.runs.files.digests import (
    DATA,
    DIGESTS,
    check_digest,
    check_digests,
    check_same_data,
    data_digests,
    digest,
    write_data_digests,
    write_digests,
)
from addnorm.runs.files.resuming import resumed_recipe
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import TrainingSetup, train_run

RunOf = Callable[[str], Path]


@pytest.fixture
def run(run_of: RunOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_of("translation"), tmp_path / "run"))


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_run_is_whole_when_it_is_finished(run: Path) -> None:
    listed = json.loads((run / DIGESTS).read_text())["xxh3_128"]
    assert listed.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    assert check_digests(run) == 3
    Run.open(run)


def test_a_flipped_byte_anywhere_in_the_weights_is_noticed_at_load(run: Path) -> None:
    file = run / "model.safetensors"
    size, rng = file.stat().st_size, random.Random(0)
    for place in (0, size - 1, *(rng.randrange(size) for _ in range(20))):
        flip(file, place)
        with pytest.raises(InputError, match=r"model\.safetensors: damaged: its digest"):
            Run.open(run)
        flip(file, place)
    Run.open(run)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_every_file_is_compared_on_demand(run: Path, name: str) -> None:
    flip(run / name, 30)
    with pytest.raises(InputError, match=f"{name}: damaged"):
        check_digests(run)
    (run / name).unlink()
    with pytest.raises(InputError, match=f"{name}: missing"):
        check_digests(run)


def test_a_file_without_a_digest_cannot_be_verified(run: Path) -> None:
    (run / DIGESTS).write_text("{}")
    with pytest.raises(InputError, match=r"digests\.json: damaged"):
        check_digest(run / "model.safetensors")
    (run / DIGESTS).unlink()
    check_digest(run / "model.safetensors")
    with pytest.raises(InputError, match="not finished, or of an earlier version"):
        check_digests(run)
    (run / "empty").touch()
    assert digest(run / "empty") == digest(run / "empty")
    write_digests(run)
    assert check_digests(run) == 3


def test_a_resumed_run_has_the_digests_of_its_new_end(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "language")
    before = (run / DIGESTS).read_text()

    train_run(resumed_recipe(run, {"train.steps": "6"}), run, resume=True, console=quiet())
    assert (run / DIGESTS).read_text() != before
    assert check_digests(run) == 3


def test_files_have_the_permissions_of_any_other(run_of: RunOf, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    expected = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    for file in run_of("language").rglob("*.*"):
        if file.is_file():
            assert stat.S_IMODE(file.stat().st_mode) == expected, file


def test_what_a_tokenizer_writes_itself_and_its_ids_are_listed(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer.ids.json", "tokenizer/pieces/deep", "tokenizer/own"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    write_digests(tmp_path)
    assert check_digests(tmp_path) == 3
    (tmp_path / "tokenizer.ids.json").write_text("[]")
    with pytest.raises(InputError, match=r"tokenizer\.ids\.json: damaged"):
        check_digests(tmp_path)


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
    assert "no data.json: cannot verify that its data are those" in go_on(run)
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
    from addnorm.data.ids import cache as text_cache

    in_memory = data_digests(encoded(tmp_path, "language"))
    monkeypatch.setattr(text_cache, "SMALLEST", 0)
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
