"""Training from Python equals the command with the same recipe, with or without a folder."""

from dataclasses import fields, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.tiny import RECIPES, quiet, write_recipe

from addnorm.config import ConfigError
from addnorm.data import Corpus, Image
from addnorm.data.batches.buckets import TokensConfig, WindowsConfig
from addnorm.data.readers.constructors import labelled, pairs, text
from addnorm.errors import InputError, Interrupted
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.inputs import PatchEmbeddingConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.positions import NoPositionConfig
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train import train_function as in_memory
from addnorm.runs.train.train_function import train
from addnorm.runs.train.train_run import train_run
from addnorm.training.settings import TrainConfig

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "attention": AttentionConfig(n_heads=2)}
PLAY = "To be, or not to be, that is the question. " * 20


@pytest.mark.long
@pytest.mark.parametrize("task", RECIPES)
def test_it_is_what_the_command_does(task: str, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, task))
    expected = train_run(recipe, tmp_path / "run", resume=False, console=quiet())
    options = vars(recipe.train)
    settings: dict[str, Any] = {"tokenizer": recipe.tokenizer, "evaluation": recipe.eval}
    run = train(recipe.model, recipe.data, progress=False, **settings, **options)
    assert run.folder is None
    assert run.recipe == recipe
    assert run.labels == expected.labels
    assert run.weights.keys() == expected.weights.keys()
    assert all(torch.equal(w, expected.weights[name]) for name, w in run.weights.items())


def test_nothing_is_kept_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    options: Any = {"tokenizer": "char", "steps": 2, "progress": False}
    run = train(DecoderConfig(**SMALL), text([PLAY, PLAY[:100]], valid_fraction=0.5), **options)
    assert list(tmp_path.iterdir()) == []
    assert run.evaluate().keys() >= {"loss", "perplexity"}
    kept = train(DecoderConfig(**SMALL), text([PLAY]), folder=tmp_path / "run", **options)
    assert kept.folder == tmp_path / "run"
    assert Run.open(tmp_path / "run").recipe == kept.recipe
    with pytest.raises(InputError, match="choose another folder"):
        train(DecoderConfig(**SMALL), text([PLAY]), folder=tmp_path / "run", **options)


def test_best_weights_and_averages_need_no_folder() -> None:
    data = pairs([("a b", "b a"), ("a", "a")] * 8, valid=[("b", "b")])
    for more in ({"select": "best"}, {"average": 2}, {"ema": 0.9}):
        options: Any = {"tokenizer": "word", "epochs": 2, "progress": False, "seed": 3, **more}
        run = train(EncoderDecoderConfig(**SMALL), data, **options)
        assert isinstance(run.translate("a b"), str)
        assert run.recipe.train.save_every is None


@pytest.mark.long
def test_a_tokenizer_that_is_there_already(tmp_path: Path) -> None:
    first = train(DecoderConfig(**SMALL), text([PLAY]), tokenizer="char", steps=1, progress=False)
    for tokenizer in (first.tokenizers, first.tokenizers.source):
        run = train(
            DecoderConfig(**SMALL), text([PLAY[:60]]), tokenizer=tokenizer, steps=1, progress=False
        )
        assert run.tokenizers.source is first.tokenizers.source
    run.save(tmp_path / "run")
    again = Run.open(tmp_path / "run")
    assert again.generate("To", beams=1) == run.generate("To", beams=1)


def test_it_begins_with_the_weights_of_a_folder(tmp_path: Path) -> None:
    config = DecoderConfig(**SMALL)
    first = train(config, text([PLAY]), tokenizer="char", steps=1, progress=False)
    first.save(tmp_path / "first")
    sized = replace(config, vocab_size=first.tokenizers.source.vocab_size)
    more: Any = {"start": tmp_path / "first", "steps": 1, "lr": 1e-12, "progress": False}
    run = train(sized, text([PLAY]), **more)
    for name, weight in run.weights.items():
        torch.testing.assert_close(weight, first.weights[name])


def test_batches_are_those_of_the_task() -> None:
    decoder = train(DecoderConfig(**SMALL), text([PLAY]), tokenizer="char", steps=1, progress=False)
    assert decoder.recipe.train.batching == WindowsConfig(seq_len=256, documents="joined")
    classifier = EncoderConfig(**SMALL, head=ClassificationHeadConfig())
    data = labelled([("a", "x"), ("b", "y")])
    encoder = train(classifier, data, tokenizer="char", steps=1, progress=False)
    assert encoder.recipe.train.batching == TokensConfig()
    assert encoder.classify("a").label in ("x", "y")


def test_images_have_no_tokenizer() -> None:
    images = [Image(torch.full((1, 4, 4), n, dtype=torch.uint8), str(n)) for n in (0, 1)]
    config = EncoderConfig(
        **SMALL,
        position=NoPositionConfig(),
        input=PatchEmbeddingConfig(size=(4, 4), channels=1, patch=2),
        head=ClassificationHeadConfig(),
    )
    run = train(config, Corpus(images), steps=1, progress=False)
    assert run.evaluate(Corpus(images))["examples"] == 2
    with pytest.raises(InputError, match="images have no tokenizer"):
        train(config, Corpus(images), tokenizer="char", steps=1, progress=False)
    with pytest.raises(InputError, match="this model reads images, not text"):
        run.classify("a")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stpes": 10}, "train() has no argument stpes. Did you mean 'steps'? Valid: config,"),
        ({"tokeniser": "char"}, "Did you mean 'tokenizer'?"),
        ({"steps": 1, "lr": -1}, "TrainConfig: lr = -1: must be greater than 0."),
        ({}, "TrainConfig: give either steps or epochs"),
        ({"steps": 1}, 'text needs a tokenizer: give tokenizer="char"'),
        ({"steps": 1, "tokenizer": "chra"}, "'chra' does not exist. Did you mean 'char'?"),
        ({"steps": 1, "tokenizer": "char", "precision": "float61"}, "Did you mean 'float16'?"),
    ],
)
def test_errors_name_the_nearest_valid_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        train(DecoderConfig(**SMALL), text([PLAY]), progress=False, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_of_another_task() -> None:
    with pytest.raises(InputError, match="the data are for translation, the model is for language"):
        train(
            DecoderConfig(**SMALL), pairs([("a", "b")]), tokenizer="char", steps=1, progress=False
        )


def test_the_arguments_are_the_fields_of_the_table() -> None:
    shown = signature(train).parameters
    for field in fields(TrainConfig):  # pyright: ignore[reportArgumentType]
        default = field.default
        brief = f"{type(default).__name__}()" if is_dataclass(default) else default
        assert shown[field.name].default == brief
    assert issubclass(ConfigError, InputError)


def test_stopping_keeps_what_a_folder_can_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> Run:
        raise Interrupted(7)

    monkeypatch.setattr(in_memory, "fit", stopped)
    options: Any = {"tokenizer": "char", "steps": 9, "progress": False}
    with pytest.raises(KeyboardInterrupt, match="after step 7; nothing is kept without folder="):
        train(DecoderConfig(**SMALL), text([PLAY]), **options)
    with pytest.raises(Interrupted):
        train(DecoderConfig(**SMALL), text([PLAY]), folder=tmp_path / "run", **options)
