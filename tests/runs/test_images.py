"""A run on images: trained, resumed, evaluated, described; text methods are refused."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.torch import load_file
from tests.commands import run_all
from tests.runs.tiny import CLASSIFICATION, quiet, said, write_corpora

from addnorm.errors import InputError
from addnorm.runs.description import describe, expectation
from addnorm.runs.evaluation import evaluate_run, evaluation_of
from addnorm.runs.inference.text import classify
from addnorm.runs.recipes.recipe import RECIPE, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.cost import estimate
from addnorm.runs.train.train_run import TrainingSetup, train_run

RECIPE_TEXT = """
[data]
kind = "images"
file = "corners.npz"
valid_fraction = 0.1

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = { kind = "patches", size = [8, 8], channels = 1, patch = 4 }
position = { kind = "none" }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 32 }
residual = { kind = "pre" }
head = { kind = "classification", pooling = "first" }
dropout = 0.1

[train]
epochs = 10
batching = { kind = "examples", size = 16, shift = 1 }
lr = 1e-2
schedule = { kind = "constant" }
select = "best"
"""


def write(folder: Path) -> Path:
    """The recipe, and images with one bright corner, which is their class."""
    rng = np.random.default_rng(0)
    held = {}
    for split, n in (("train", 200), ("test", 40)):
        labels = rng.integers(0, 4, n)
        images = rng.integers(0, 60, (n, 8, 8), np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 4 * (label // 2), 4 * (label % 2)
            image[top + 1 : top + 3, left + 1 : left + 3] += 150
        held |= {f"x_{split}": images, f"y_{split}": labels}
    np.savez(folder / "corners.npz", **held)
    file = folder / "corners.toml"
    file.write_text(RECIPE_TEXT.replace('kind = "images"', f'kind = "images"\nroot = "{folder}"'))
    return file


def train(folder: Path, name: str = "run", **overrides: str) -> Run:
    recipe = read_recipe(folder / "corners.toml", overrides)
    return train_run(recipe, folder / name, resume=True, console=quiet())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run(tmp_path_factory.mktemp("corners"))


@cache
def _run(folder: Path) -> Run:
    write(folder)
    return train(folder)


@pytest.mark.long
def test_it_learns_and_is_evaluated(run: Run) -> None:
    evaluation = evaluation_of(Run.open(run.folder), "test")
    scores, predictions = evaluation.scores, evaluation.predictions
    assert scores["examples"] == 40
    assert scores["accuracy"] >= 90
    assert set(predictions.values()) == {"0", "1", "2", "3"}
    lines = [json.loads(row) for row in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["valid_accuracy"] >= 90


def test_the_folder_has_no_tokenizer(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.json", "labels.json", "model.safetensors"} <= names
    assert not [name for name in names if "tokenizer" in name]
    assert Run.open(run.folder).labels == ("0", "1", "2", "3")


def test_it_is_described(run: Run) -> None:
    console = quiet()
    console.print(describe(run.folder))
    console.print(describe(run.folder.parent / "corners.toml"))
    assert "labels" in said(console)
    assert "vocabulary" not in said(console)
    assert "patches" in said(console)


def test_the_cost_is_estimated(tmp_path: Path) -> None:
    prepared = TrainingSetup(read_recipe(write(tmp_path)))
    console = Console(file=quiet().file)
    console.print(expectation(prepared.recipe, estimate(prepared, 1)))


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    """Order, shifts and dropout: cut in the midst of an epoch, two halves are the whole."""
    file = write(tmp_path)
    file.write_text(file.read_text().replace("epochs = 10", "steps = 18\nsave_every = 9"))
    whole = train(tmp_path, "whole")
    train(tmp_path, "parts", **{"train.steps": "9"})
    parts = train(tmp_path, "parts")
    one, other = (load_file(run.folder / "model.safetensors") for run in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)


AUGMENT = (
    '[{ kind = "crop", padding = 1 }, "flip", "randaugment", "erasing", '
    '{ kind = "mixup", alpha = 0.4, probability = 0.5 }, "cutmix"]'
)


def test_augmentation_resumes_to_the_bit(tmp_path: Path) -> None:
    """A convolutional stem and mixed classes: two halves are the whole; validation is as before."""
    file = write(tmp_path)
    file.write_text(
        file.read_text()
        .replace("epochs = 10", "steps = 18\nsave_every = 9\nlabel_smoothing = 0.1")
        .replace("shift = 1", f"augment = {AUGMENT}")
        .replace('kind = "patches"', 'kind = "convolutions"')
        .replace("channels = 1, patch = 4", "channels = 1, widths = [4]")
        .replace('pooling = "first"', 'pooling = "seqpool"')
    )
    whole = train(tmp_path, "whole")
    train(tmp_path, "parts", **{"train.steps": "9"})
    parts = train(tmp_path, "parts")
    one, other = (load_file(run.folder / "model.safetensors") for run in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)
    assert evaluation_of(whole, "test").scores == evaluation_of(parts, "test").scores
    assert whole.recipe.train.batching.augment[3].kind == "erasing"  # type: ignore[union-attr]


def test_it_reads_no_text(run: Run) -> None:
    with pytest.raises(InputError, match="reads images, not text"):
        classify(Run.open(run.folder), ["a line"])


def test_other_resolutions_are_evaluated(run: Run, tmp_path: Path) -> None:
    held = dict(np.load(run.folder.parent / "corners.npz"))
    wide = {k: v.repeat(2, 1).repeat(2, 2) if v.ndim == 3 else v for k, v in held.items()}
    np.savez(tmp_path / "corners.npz", **wide)
    opened = Run.open(run.folder, {"data.root": str(tmp_path)})
    assert evaluate_run(opened, "test")["examples"] == 40


def test_the_recipe_survives_json(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    assert recipe.tokenizer is None
    assert RECIPE.validate_python(RECIPE.dump_python(recipe, mode="json")) == recipe


TOKENIZER = '[tokenizer]\nkind = "char"\n\n[model]'
WRONG = {
    # What is replaced, by what, the line of it, and what the message must hold.
    "a tokenizer": ("[model]", TOKENIZER, "[tokenizer]", "leave [tokenizer] out"),
    "token inputs": ('kind = "patches", size = [8, 8], channels = 1, patch = 4', 'kind = "tokens"',
                     "input", "the model reads tokens, but data.kind = 'images' needs"),
    "no input": ('input = { kind = "patches", size = [8, 8], channels = 1, patch = 4 }\n', "",
                 "[model]", "model.input.kind = 'patches'"),
    "audio": ('kind = "patches", size = [8, 8], channels = 1, patch = 4', 'kind = "log_mel"',
              "input", "the model reads log_mel"),
    "batches of text": ('{ kind = "examples", size = 16, shift = 1 }', '{ kind = "tokens" }',
                        "batching", "train.batching.kind = 'tokens' is for text"),
    "batches unsaid": ('batching = { kind = "examples", size = 16, shift = 1 }\n', "",
                       "[train]", "needs 'examples'"),
    "a size that does not divide": ("[8, 8]", "[8, 9]", "input", "the nearest size that does is 8"),
    "a tied head": ('head = { kind = "classification", pooling = "first" }\n', "", "[model]",
                    "a tied head shares"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    old, new, mark, expected = WRONG[case]
    text = RECIPE_TEXT.replace(old, new)
    file = tmp_path / "r.toml"
    file.write_text(text)
    line = next(n for n, row in enumerate(text.split("\n"), 1) if mark in row)
    with pytest.raises(InputError) as caught:
        read_recipe(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert expected in str(caught.value)


def test_text_needs_a_tokenizer_and_reads_tokens(tmp_path: Path) -> None:
    write_corpora(tmp_path)
    file = tmp_path / "r.toml"
    file.write_text(CLASSIFICATION.replace('[tokenizer]\nkind = "word"\n', ""))
    with pytest.raises(InputError, match=r"r\.toml:1: tokenizer is missing\."):
        read_recipe(file)
    file.write_text(CLASSIFICATION)
    with pytest.raises(
        InputError, match=r"`model\.input`: the model reads patches, but .* 'lines'"
    ):
        read_recipe(file, {"model.input": '{kind = "patches"}'})
    recipe = read_recipe(
        file, {"train.batching": '{kind = "examples"}', "data.root": f"{tmp_path}"}
    )
    with pytest.raises(InputError, match='text needs kind = "tokens"'):
        TrainingSetup(recipe)


def test_images_of_other_channels_are_one_message(run: Run, tmp_path: Path) -> None:
    held = dict(np.load(run.folder.parent / "corners.npz"))
    colours = {k: np.stack([v] * 3, -1) if v.ndim == 3 else v for k, v in held.items()}
    np.savez(tmp_path / "corners.npz", **colours)
    opened = Run.open(run.folder, {"data.root": str(tmp_path)})
    with pytest.raises(
        InputError, match=r"shape \(batch, 1, height, width\), got .* \(16, 3, 8, 8\)"
    ):
        evaluate_run(opened, "test")


@pytest.mark.long
def test_from_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    train = ["train", str(write(tmp_path)), "--train.epochs", "1", "--out", out]
    (tmp_path / "line.txt").write_text("a line\n")
    read = ["classify", out, str(tmp_path / "line.txt")]
    done = run_all([train, ["evaluate", out], read], tmp_path)
    assert json.loads(done.stdout)["examples"] == 40
    assert done.returncode == 2
    assert "line.txt is not readable as a picture" in done.stderr
    assert "Traceback" not in done.stderr
