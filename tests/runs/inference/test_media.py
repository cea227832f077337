"""A run on sound and one on image files: trained, resumed, evaluated, and asked about files."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image as pillow
from safetensors.torch import load_file
from tests.runs.test_images import train as train_on_arrays
from tests.runs.test_images import write as write_arrays
from tests.runs.tiny import quiet

from addnorm.cli.main import status
from addnorm.data.batches.images import mixes
from addnorm.errors import InputError
from addnorm.generate import GreedyConfig
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.inference.media import classify_files, embed_files, transcribe_files
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.cost import largest_batches, predict_peak_memory
from addnorm.runs.train.train_run import TrainingSetup, train_run

SOUND = """
[data]
kind = "audio"
train = "tones/*_[0-9].wav"
valid = "tones/*_1[0-2].wav"
test = "tones/*_1[3-5].wav"
label_pattern = "^([a-z]+)_"
sample_rate = 4000
n_mels = 16

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = { kind = "log_mel", n_mels = 16 }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 32 }
head = { kind = "classification", pooling = "mean" }
dropout = 0.1

[train]
epochs = 15
batching = { kind = "frames", frames = 200, augment = { time_width = 4, mel_width = 2 } }
lr = 1e-2
schedule = { kind = "constant" }
"""

TONES = {"low": 200.0, "middle": 600.0, "high": 1500.0}


def write(folder: Path) -> Path:
    """Noisy tones of three pitches and several lengths, named after their pitch."""
    rng = np.random.default_rng(0)
    (folder / "tones").mkdir()
    for name, hertz in TONES.items():
        for i in range(16):
            times = np.arange(800 + 100 * (i % 5)) / 4000
            noisy = np.sin(2 * math.pi * hertz * times + i) / 3 + rng.normal(0, 0.02, len(times))
            soundfile.write(folder / "tones" / f"{name}_{i}.wav", noisy, 4000)
    file = folder / "tones.toml"
    file.write_text(SOUND.replace('kind = "audio"', f'kind = "audio"\nroot = "{folder}"'))
    return file


@cache
def trained(folder: Path) -> Run:
    return train_run(read_recipe(write(folder)), folder / "run", resume=True, console=quiet())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("tones"))


def folder_of(run: Run) -> Path:
    assert run.folder is not None
    return run.folder


def test_it_learns_and_is_evaluated(run: Run) -> None:
    found = evaluation_of(Run.open(folder_of(run)), "test")
    assert found.scores["examples"] == 9
    assert found.scores["accuracy"] == 100
    assert [*found.gold.values()] == [*found.predictions.values()]


def test_files_have_the_classes_of_their_split(run: Run) -> None:
    tones = sorted((folder_of(run).parent / "tones").glob("*_1[3-5].wav"))
    found = dict(classify_files(Run.open(folder_of(run)), tones, batch_size=2))
    assert {file: one.label for file, one in found.items()} == {
        file: file.stem.partition("_")[0] for file in tones
    }
    alone = {file: one for file in tones for _, one in classify_files(run, [file])}
    for file in tones:  # padding changes nothing
        ours, theirs = found[file].probabilities, alone[file].probabilities
        assert torch.allclose(torch.tensor([*ours.values()]), torch.tensor([*theirs.values()]))


def test_a_table_of_tokens_is_not_for_sound(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.embedding is for tokens, .* reads log_mel"):
        read_recipe(write(tmp_path), {"model.embedding": "{ word_dropout = 0.2 }"})


def test_files_of_train_in_strings_of_test_are_told(tmp_path: Path) -> None:
    """Though no string of test is one of train."""
    file = write(tmp_path)
    text = file.read_text("utf-8")
    for old, new in {
        "[model]": '[data.strings]\nlongest = 2\n[tokenizer]\nkind = "char"\n[model]',
        'kind = "encoder"': 'kind = "encoder_decoder"',
        'head = { kind = "classification", pooling = "mean" }': "",
    }.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, "utf-8")
    recipe = read_recipe(file, {"data.test": "tones/*_[89].wav"})
    console = quiet()
    TrainingSetup(recipe).report(console)
    told = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "test: 6 of 6 audio are in train too, such as number 1" in told


def test_files_of_train_among_those_of_test_are_told(tmp_path: Path) -> None:
    file = write(tmp_path)
    console = quiet()
    recipe = read_recipe(file, {"train.epochs": "1", "data.test": "tones/*_[89].wav"})
    train_run(recipe, tmp_path / "run", resume=True, console=console)
    told = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "test: 6 of 6 audio are in train too, such as number 1" in told
    assert "valid: " not in told.partition("in train too")[0][-40:]


def test_a_bad_file_is_named_or_left_out(run: Run, tmp_path: Path) -> None:
    good = folder_of(run).parent / "tones" / "low_3.wav"
    (tmp_path / "bad.wav").write_bytes(good.read_bytes()[:-50])
    files = [good, tmp_path / "bad.wav", tmp_path / "none.wav", tmp_path]
    with pytest.raises(InputError, match=r"bad\.wav is empty or truncated"):
        list(classify_files(run, files))
    left_out: list[InputError] = []
    found = classify_files(run, files, skipped=left_out.append)
    assert [(file, one.label) for file, one in found] == [(good, "low")]
    assert [str(one).rpartition("/")[2].split()[0] for one in left_out] == [
        "bad.wav",
        "none.wav:",
        f"{tmp_path.name}:",
    ]


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("epochs = 15", "steps = 12\nsave_every = 6"))

    def weights(name: str, **overrides: str) -> dict[str, torch.Tensor]:
        recipe = read_recipe(file, overrides)
        train_run(recipe, tmp_path / name, resume=True, console=quiet())
        return load_file(tmp_path / name / "model.safetensors")

    whole = weights("whole")
    weights("parts", **{"train.steps": "6"})
    parts = weights("parts")
    assert all(whole[name].equal(parts[name]) for name in whole)


WRONG = {
    "other mels": ('log_mel", n_mels = 16', 'log_mel", n_mels = 20', "data.n_mels = 16"),
    "patches": ('{ kind = "log_mel", n_mels = 16 }', '{ kind = "patches" }', "needs model.input"),
    "text": ('kind = "frames", frames = 200, augment = { time_width = 4, mel_width = 2 }',
             'kind = "tokens"', "kind = 'audio' needs 'frames'"),
    "a tokenizer": ("[model]", '[tokenizer]\nkind = "char"\n\n[model]', "need no tokenizer"),
    "a typo": ("sample_rate", "samplerate", "Did you mean 'sample_rate'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named(case: str, tmp_path: Path) -> None:
    old, new, expected = WRONG[case]
    assert old in SOUND
    (tmp_path / "r.toml").write_text(SOUND.replace(old, new))
    with pytest.raises(InputError, match=r"r\.toml:\d+: ") as caught:
        read_recipe(tmp_path / "r.toml")
    assert expected in str(caught.value)


def test_pictures_are_brought_to_the_size_of_the_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    opened = train_on_arrays(tmp_path, **{"train.epochs": "6"})
    held = np.load(tmp_path / "corners.npz")
    for i in range(8):
        pixels = held["x_test"][i]
        pillow.fromarray(pixels).save(tmp_path / f"{i}.png")
        pillow.fromarray(pixels).convert("RGB").save(tmp_path / f"{i}.webp", lossless=True)
    expected = [text for _, text in sorted(evaluation_of(opened, "test").predictions.items())][:8]
    for suffix in ("png", "webp"):
        files = [tmp_path / f"{i}.{suffix}" for i in range(8)]
        assert [one.label for _, one in classify_files(opened, files)] == expected


def test_from_the_command_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(folder_of(run))
    tone = folder_of(run).parent / "tones" / "high_13.wav"
    assert status(["classify", folder, str(tone)]) == 0
    assert capsys.readouterr().out == f"high\t{tone}\n"
    assert status(["classify", folder, str(tone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(tone)
    assert status(["classify", folder, str(tone), "none.wav", "--errors", "skip"]) == 0
    assert "1 of 2 files skipped" in capsys.readouterr().err
    picture = folder_of(run).parent / "confusion.svg"
    assert status(["evaluate", folder, "--confusion", str(picture)]) == 0
    assert picture.stat().st_size > 1000
    for words, message in (
        ((), "name the image or sound files"),
        ((str(tone), "--pairs"), "leave out --pairs"),
        ((str(tone), "--errors", "replace"), "give stop or skip"),
        (("none.wav",), "none.wav: does not exist"),
    ):
        assert status(["classify", folder, *words]) == 2
        assert message in capsys.readouterr().err


SHAPES = """
[data]
kind = "image_files"
root = "{root}"
train = "shades/train"
test = "shades/test"
image_size = "own"
size_multiple = 4
channels = 1

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = {{ kind = "patches", size = [8, 8], channels = 1, patch = 4, class_token = false }}
attention = {{ n_heads = 2 }}
feedforward = {{ kind = "mlp", d_ff = 16 }}
head = {{ kind = "classification", pooling = "mean" }}

[train]
steps = 40
batching = {{ kind = "examples", size = 8, pixels = 400, augment = ["flip", "cutmix"] }}
lr = 1e-2
"""


def write_shades(folder: Path) -> Path:
    """Dark and light pictures of four sizes, one of which no patch divides."""
    rng = np.random.default_rng(0)
    for i in range(40):
        size = ((8, 8), (8, 12), (12, 8), (13, 9))[i // 2 % 4]
        name, light = ("dark", "light")[i % 2], 150 * (i % 2)
        file = folder / "shades" / ("train" if i < 32 else "test") / name / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray((rng.integers(0, 90, size) + light).astype(np.uint8)).save(file)
    recipe = folder / "shades.toml"
    recipe.write_text(SHAPES.format(root=folder))
    return recipe


def test_pictures_of_several_sizes(tmp_path: Path) -> None:
    """Batches of one size each; the positions of patches are interpolated to it."""
    recipe = write_shades(tmp_path)
    run = train_run(read_recipe(recipe, {}), tmp_path / "run", resume=False, console=quiet())
    assert evaluation_of(run, "test").scores["accuracy"] >= 90
    files = sorted((tmp_path / "shades" / "test").rglob("*.png"))
    together = [found for _, found in classify_files(run, files)]
    alone = [found for file in files for _, found in classify_files(run, [file])]
    assert [one.label for one in together] == [file.parent.name for file in files]
    assert together == alone


def test_the_largest_batch_of_pictures_is_that_of_most_pixels(tmp_path: Path) -> None:
    prepared = TrainingSetup(read_recipe(write_shades(tmp_path), {}))
    found = largest_batches(prepared.loaders.train)
    every = [batch.inputs["inputs"].numel() for batch in prepared.loaders.train.batches()]
    assert found[0].inputs["inputs"].numel() == max(every)


def test_the_largest_batch_of_clips_is_that_of_most_frames(tmp_path: Path) -> None:
    prepared = TrainingSetup(read_recipe(write(tmp_path), {}))
    found = largest_batches(prepared.loaders.train)
    every = [batch.inputs["inputs"].numel() for batch in prepared.loaders.train.batches()]
    assert found[0].inputs["inputs"].numel() == max(every) > min(every)


def test_memory_is_predicted_where_images_are_mixed(tmp_path: Path) -> None:
    prepared = TrainingSetup(read_recipe(write_shades(tmp_path), {}))
    assert mixes(prepared.recipe.train.batching.augment)
    assert predict_peak_memory(prepared).activations > 0


@pytest.mark.long
def test_texts_of_pictures_of_several_sizes(tmp_path: Path) -> None:
    recipe = write_shades(tmp_path)
    for file in (tmp_path / "shades").rglob("*.png"):
        file.with_suffix(".txt").write_text(file.parent.name)
    text = recipe.read_text()
    for old, new in {
        "[model]": 'labels = "text_beside"\n[tokenizer]\nkind = "char"\n[model]',
        'kind = "encoder"': 'kind = "encoder_decoder"',
        'head = { kind = "classification", pooling = "mean" }': "",
        ', "cutmix"': "",
        "steps = 40": "steps = 80",
    }.items():
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(text + '\n[eval]\ndecoding = { kind = "greedy" }\n')
    run = train_run(read_recipe(recipe, {}), tmp_path / "run", resume=False, console=quiet())
    assert "wer" in evaluation_of(run, "test").scores
    files = sorted((tmp_path / "shades" / "test").rglob("*.png"))
    together = [best[0].text for _, best in transcribe_files(run, files, GreedyConfig())]
    alone = [run.generate([str(file)])[0] for file in files]
    assert together == [str(one) for one in alone]
    assert run.embed([str(file) for file in files]).shape == (8, 16)


def test_files_become_vectors(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, tones = folder_of(run), folder_of(run).parent / "tones"
    files = [tones / "low_3.wav", tones / "high_13.wav", tones / "low_4.wav"]
    together = [vector for _, vector in embed_files(run, files)]
    for file, vector in zip(files, together, strict=True):  # padding changes nothing
        [(_, alone)] = embed_files(run, [file])
        assert torch.allclose(vector, alone, atol=1e-5)
        frames = run.recipe.data.read(file, "")[None]  # type: ignore[union-attr]
        hidden, _ = run.model.hidden(frames)  # type: ignore[union-attr]
        assert torch.allclose(alone, hidden[0].mean(0), atol=1e-5)
    out = tmp_path / "vectors.npy"
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    words = ["embed", str(folder), *map(str, files), str(tmp_path / "bad.wav")]
    assert status([*words, "--errors", "skip", "--out", str(out)]) == 0
    assert "1 of 4 files skipped" in capsys.readouterr().err
    assert np.allclose(np.load(out), torch.stack(together).numpy(), atol=1e-5)
    assert status(words) == 2
    assert "bad.wav is not readable as sound" in capsys.readouterr().err
    assert status(["embed", str(folder)]) == 2
    assert "name the image or sound files" in capsys.readouterr().err


def test_a_picture_too_small_for_the_model_is_named_or_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_shades(tmp_path)
    text = recipe.read_text().replace("size_multiple = 4\n", "")
    old = '{ kind = "patches", size = [8, 8], channels = 1, patch = 4, class_token = false }'
    assert old in text
    small = '{ kind = "convolutions", size = [8, 8], channels = 1, widths = [8] }'
    recipe.write_text(text.replace(old, small).replace("steps = 40", "steps = 2"))
    train_run(read_recipe(recipe, {}), tmp_path / "run", resume=False, console=quiet())
    pillow.new("L", (3, 3)).save(tmp_path / "tiny.png")
    pillow.new("L", (9, 13)).save(tmp_path / "odd.png")
    words = ["classify", str(tmp_path / "run"), f"{tmp_path}/tiny.png", f"{tmp_path}/odd.png"]
    assert status(words) == 2
    assert "tiny.png: an image of 3 × 3 is too small" in capsys.readouterr().err
    assert status([*words, "--errors", "skip"]) == 0
    assert "1 of 2 files skipped" in capsys.readouterr().err


def test_patches_divide_pictures_of_their_own_sizes(tmp_path: Path) -> None:
    recipe = write_shades(tmp_path)
    recipe.write_text(recipe.read_text().replace("size_multiple = 4", "size_multiple = 6"))
    with pytest.raises(InputError, match=r"shades.toml:8: .* data.size_multiple = 4, or a mult"):
        read_recipe(recipe, {})
