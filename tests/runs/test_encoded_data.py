"""Large texts are read once: a run that takes them from the cache is the run that would be."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.tiny import quiet, said, train_tiny, write_recipe

from addnorm.data import TextConfig
from addnorm.data.ids import cache as text_cache
from addnorm.data.ids.compact import Compact
from addnorm.errors import InputError
from addnorm.runs.encoded_data import read_data
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.files.folder import Saved
from addnorm.runs.files.resuming import resumed_recipe
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run
from addnorm.training.checkpoint import checkpoints_in

WAYS = ("windows", "packed", "tokens")
FILES = ("model.safetensors", "tokenizer.json", "metrics.jsonl")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on small texts are kept too, in this folder."""
    monkeypatch.setattr(text_cache, "SMALLEST", 0)
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, whoever reads a text fails."""

    def refuse(self: object) -> None:
        raise AssertionError("the text is read")

    return lambda: monkeypatch.setattr(TextConfig, "load", refuse)


def batching(way: str) -> dict[str, str]:
    sizes = "tokens = 600" if way == "tokens" else "batch_size = 4, seq_len = 16"
    return {
        "data.unit": "line",
        "train.batching": f'{{ kind = "{way}", {sizes} }}',
        "train.precision": "float32",
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_the_same_with_the_cache_and_without(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_reading
) -> None:
    folders = [tmp_path / name for name in ("plain", "first", "second")]
    folders[0].mkdir()
    runs = [train_tiny(folders[0], "language", **batching(way))]
    scores = [evaluate_on(Run.open(runs[0]))]
    monkeypatch.setattr(text_cache, "SMALLEST", 0)
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    recipe = read_recipe(folders[0] / "language.toml", batching(way))
    for folder in folders[1:]:
        train_run(recipe, folder, resume=False, console=quiet())
        runs.append(folder)
        scores.append(evaluate_on(Run.open(folder)))
        no_reading()
    for name in FILES:
        first, *others = [(run / name).read_bytes() for run in runs]
        assert others == [first, first]
    assert scores[1:] == [scores[0], scores[0]]


def test_a_run_resumes_from_the_cache_to_the_bit(tmp_path: Path, kept: Path, no_reading) -> None:
    recipe = read_recipe(write_recipe(tmp_path, "language"), batching("windows"))
    run = tmp_path / "run"
    train_run(recipe, run, resume=False, console=quiet())
    whole = [(run / name).read_bytes() for name in FILES]
    no_reading()
    (run / "model.safetensors").unlink()
    half, last = checkpoints_in(run / "checkpoints")
    assert half.name < last.name
    shutil.rmtree(last)
    train_run(resumed_recipe(run, {}), run, resume=True, console=quiet())
    assert [(run / name).read_bytes() for name in FILES] == whole


def test_texts_are_not_held_while_a_model_learns_from_them(tmp_path: Path, kept: Path) -> None:
    data = read_data(read_recipe(write_recipe(tmp_path, "language")))
    assert data.corpus is None
    assert isinstance(data.encoded.train, Compact)
    assert len([*kept.iterdir()]) == 2


def test_data_of_other_tasks_are_not_cached(tmp_path: Path, kept: Path) -> None:
    data = read_data(read_recipe(write_recipe(tmp_path, "translation")))
    assert data.corpus is not None
    assert len(data.corpus.train) == len(data.encoded.train)
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "file"))
    console = quiet()
    recipe = read_recipe(write_recipe(tmp_path, "language"))
    train_run(recipe, tmp_path / "run", resume=False, console=console)
    assert said(console).count("cannot be written") == 1


def test_texts_without_a_tokenizer_are_refused(tmp_path: Path, kept: Path) -> None:
    """As of a folder of someone's weights alone."""
    recipe = read_recipe(write_recipe(tmp_path, "language"))
    with pytest.raises(InputError, match="there is no tokenizer"):
        read_data(recipe, Saved(recipe, None, ()))
