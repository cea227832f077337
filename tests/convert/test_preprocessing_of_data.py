"""An exported model of pictures or sound reads files as its data were read, in transformers too."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from addnorm.convert.preprocessing import preprocessing_of
from addnorm.convert.preprocessing_of_data import reading_of
from addnorm.data import AudioConfig, Corpus, DataConfig, ImageFilesConfig, ImagesConfig
from addnorm.data.examples import Image
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.runs.export import export_run
from addnorm.runs.inference.media import check_read_alike, classify_files
from addnorm.runs.run import Run

transformers: Any = pytest.importorskip("transformers")
pillow: Any = pytest.importorskip("PIL.Image")
soundfile: Any = pytest.importorskip("soundfile")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("types_unchecked")]


def learnt(
    folder: Path, data: DataConfig, size: tuple[int, int] = (24, 24), channels: int = 3
) -> Run:
    """A classifier of pictures that learnt from these data."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=list(size), patch_size=8, num_channels=channels, num_labels=3,
        initializer_range=1.0,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder / "start")
    run = Run.open(folder / "start")
    return replace(run, recipe=replace(run.recipe, data=data))


def pictures(folder: Path, *shapes: tuple[int, ...]) -> list[Path]:
    """Random pictures, each of 8 × 8 squares, as a photograph has areas."""
    rng = np.random.default_rng(0)
    files = [folder / f"{n}.png" for n in range(len(shapes))]
    for file, shape in zip(files, shapes, strict=True):
        few = rng.integers(0, 256, (-(-shape[0] // 8), -(-shape[1] // 8), *shape[2:]), np.uint8)
        full = few.repeat(8, 0).repeat(8, 1)[: shape[0], : shape[1]]
        pillow.fromarray(full).save(file)
    return files


FILES = ImageFilesConfig(train="train", image_size=(24, 24))
GREY = ImageFilesConfig(train="train", image_size=(24, 24), channels=1)
WIDE = ImageFilesConfig(train="train", image_size=(16, 24))
ARRAYS = ImagesConfig(file=Path("a.npz"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "size", "shapes", "nearly"),
    [
        (FILES, (24, 24), [(24, 24, 3), (48, 48, 3), (96, 24, 3), (48, 64, 3)], [(37, 53, 3)]),
        (GREY, (24, 24), [(24, 24), (48, 96)], [(31, 47)]),
        (ARRAYS, (24, 24), [(24, 24, 3), (48, 48, 3)], []),
        (WIDE, (16, 24), [(16, 24, 3)], []),
    ],
)
def test_an_exported_model_classifies_files_as_the_run_does(
    data: DataConfig,
    size: tuple[int, int],
    shapes: list[tuple[int, ...]],
    nearly: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    channels = 1 if data is GREY else 3
    run = learnt(tmp_path, data, size, channels)
    said = export_run(run, tmp_path / "hf", to="hf")
    assert "preprocessing of the data" in said[-1]
    left = json.loads((tmp_path / "hf" / "export_account.json").read_text())["not_carried"]
    assert left["preprocessing of the data"].keys() == {"size", "transparent"}
    files = pictures(tmp_path, *shapes, *nearly)
    expected = [one.probabilities for _, one in classify_files(run, files)]
    found = [one.probabilities for _, one in classify_files(Run.open(tmp_path / "hf"), files)]
    processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "hf")
    model = transformers.ViTForImageClassification.from_pretrained(tmp_path / "hf").eval()
    for n, file in enumerate(files):
        pixels = processor(pillow.open(file), return_tensors="pt").pixel_values
        with torch.no_grad():
            theirs = model(pixels).logits.softmax(-1)[0].tolist()
        ours = [list(one[n].values()) for one in (expected, found)]
        assert ours[1] == pytest.approx(theirs, abs=1e-4)
        assert ours[0] == pytest.approx(theirs, abs=1e-4 if n < len(shapes) else 0.2)
    if data is WIDE:
        [other] = pictures(tmp_path, (32, 48, 3))
        with pytest.raises(InputError, match="makes it 32 × 48 pixels, and the model reads 16"):
            list(classify_files(Run.open(tmp_path / "hf"), [other]))


@pytest.mark.parametrize(
    "data",
    [
        replace(ARRAYS, pool=2),
        replace(ARRAYS, permute_seed=1),
        None,
    ],
)
def test_what_has_no_form_there_is_not_written(data: DataConfig | None, tmp_path: Path) -> None:
    run = learnt(tmp_path, data)  # type: ignore[arg-type]
    export_run(run, tmp_path / "hf", to="hf")
    assert not (tmp_path / "hf" / "preprocessor_config.json").exists()
    if data is not None:
        left = json.loads((tmp_path / "hf" / "export_account.json").read_text())["not_carried"]
        assert "image_mean" in left["preprocessing of the data"]
    with pytest.raises(InputError, match="or use the run that was exported"):
        list(classify_files(Run.open(tmp_path / "hf"), pictures(tmp_path, (24, 24, 3))))


# Evaluation


RESIZED: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "as ours": ({}, True, True),
    "bilinear": ({"resample": 2}, False, True),
    "squeezed": (
        {"size": {"height": 24, "width": 24}, "do_center_crop": False}, False, True,
    ),
    "a margin": ({"size": {"shortest_edge": 28}}, False, False),
    "as it is": ({"do_resize": False, "do_center_crop": False}, False, True),
}  # fmt: skip
"""Keys, and whether data of files and arrays of the model's size are read as the folder reads."""


@pytest.mark.parametrize("case", RESIZED)
def test_data_that_are_resized_otherwise_are_refused(case: str, tmp_path: Path) -> None:
    run = learnt(tmp_path, FILES)
    keys, files, arrays = RESIZED[case]
    file = tmp_path / "start" / "preprocessor_config.json"
    file.write_text(json.dumps(reading_of(FILES, run.recipe.model).keys | keys))
    bare = replace(run, recipe=replace(run.recipe, data=None))
    corpus = Corpus([Image(torch.zeros(3, 24, 24, dtype=torch.uint8), "LABEL_0")], (), ())
    given = replace(run, recipe=replace(run.recipe, data=ARRAYS))
    for one, more, right in ((run, None, files), (given, None, arrays), (bare, corpus, arrays)):
        if right:
            check_read_alike(one, more)
            continue
        with pytest.raises(InputError, match="pictures are resized by other settings than data of"):
            check_read_alike(one, more)
    file.write_text(json.dumps({"image_mean": 0.4}))
    for one, more in ((run, None), (given, None), (bare, corpus)):
        with pytest.raises(InputError, match="pixels are scaled by image_mean"):
            check_read_alike(one, more)


# Sound


def _hears(seconds: int = 2) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        d_model=8, n_layers=1, max_len=50 * seconds, input=LogMelEmbeddingConfig(n_mels=20)
    )


def test_clips_are_read_as_whisper_reads_them(tmp_path: Path) -> None:
    """A clip as long as the model hears has the run's features, and a shorter one is padded."""
    data, model = AudioConfig(train="train", n_mels=20), _hears()
    reading = reading_of(data, model)
    assert "silence to 2 s" in reading.left["length"]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(reading.keys))
    theirs = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    reads = preprocessing_of([tmp_path], model)
    rng = np.random.default_rng(0)
    for n in (32_000, 20_000):
        file = tmp_path / f"{n}.wav"
        soundfile.write(file, rng.normal(0, 0.1, n), 16_000)
        samples, rate = soundfile.read(file, dtype="float32")
        expected = theirs(samples, sampling_rate=rate, return_tensors="pt").input_features[0]
        assert_close(reads.read(file, "x"), expected, rtol=0, atol=1e-4)
        if n == 32_000:
            assert_close(data.read(file, "x"), expected, rtol=0, atol=1e-4)


def test_sound_that_whisper_does_not_hear_is_not_written() -> None:
    slow = AudioConfig(train="train", n_mels=20, sample_rate=8000)
    assert not reading_of(slow, _hears()).keys
    data = AudioConfig(train="train", n_mels=20)
    assert not reading_of(data, replace(_hears(), max_len=99)).keys
    assert not reading_of(data, object()).keys
