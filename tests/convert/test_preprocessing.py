"""Pictures and sound for Hugging Face folders, beside `transformers` on tiny random models."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import addnorm as addnorm
from torch.testing import assert_close

from addnorm.convert.preprocessing import Pictures, preprocessing_of, reading_of
from addnorm.data import AudioConfig, Corpus, DataConfig, ImageFilesConfig, ImagesConfig
from addnorm.data.batches.images import ExamplesConfig
from addnorm.data.examples import Image
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.quantize import DynamicConfig, Int8Config
from addnorm.runs.export import export_run
from addnorm.runs.files.speech_prompt import speech_prompt
from addnorm.runs.inference.media import check_read_alike, classify_files
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run

Command = Callable[..., tuple[int, str, str]]
transformers: Any = pytest.importorskip("transformers")
pillow: Any = pytest.importorskip("PIL.Image")
soundfile: Any = pytest.importorskip("soundfile")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("types_unchecked")]

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ViT classifier with ImageNet's mean and deviation, and its pictures."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        **SIZES,
        intermediate_size=32,
        image_size=24,
        patch_size=8,
        num_labels=3,
        initializer_range=1.0,
    )
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
    processor = transformers.ViTImageProcessorPil(
        size={"height": 24, "width": 24},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.2, 0.3, 0.4],
    )
    processor.save_pretrained(folder)
    rng = np.random.default_rng(0)
    for name, mode, shape in (
        ("rgb.png", "RGB", (37, 53, 3)),
        ("grey.png", "L", (24, 24)),
        ("alpha.png", "RGBA", (40, 20, 4)),
        ("small.png", "RGB", (5, 7, 3)),
    ):
        pixels = rng.integers(0, 256, shape, np.uint8)
        pillow.fromarray(pixels, mode).save(folder / name)
    return folder


def theirs_of(folder: Path, file: Path, model: Any) -> Any:
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    picture = transformers.image_utils.load_image(str(file))
    with torch.no_grad():
        return model(**processor(picture, return_tensors="pt"))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"resample": 3},
    {"resample": 0},
    {"do_normalize": False},
    {"do_rescale": False},
    {"rescale_factor": 0.01},
    {
        "size": {"shortest_edge": 30},
        "do_center_crop": True,
        "crop_size": {"height": 24, "width": 24},
    },
    {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
]


@pytest.mark.parametrize("changes", SETTINGS)
def test_pictures_are_read_as_transformers_reads_them(
    changes: dict[str, Any], vit: Path, tmp_path: Path
) -> None:
    tree = json.loads((vit / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**tree, **changes}))
    model = Run.open(vit).recipe.model
    reads = preprocessing_of([tmp_path], model)
    processor = transformers.ViTImageProcessorPil.from_pretrained(tmp_path)
    for file in sorted(vit.glob("*.png")):
        picture = transformers.image_utils.load_image(str(file))
        theirs = processor(picture, return_tensors="pt")["pixel_values"][0]
        assert_close(reads.read(file, "x"), theirs, rtol=0, atol=1e-4)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("DeiTImageProcessor", {"size": 30, "crop_size": 24}),
    "deit of files without keys": ("DeiTImageProcessor", {}),
    "dinov2": ("BitImageProcessor", {"size": {"shortest_edge": 33}, "crop_size": 32}),
    "dinov2 of another size": ("BitImageProcessor", {"size": 40, "crop_size": 16}),
}


@pytest.mark.parametrize(("name", "keys"), OTHERS.values(), ids=OTHERS)
def test_other_readers_of_pictures(
    name: str, keys: dict[str, Any], vit: Path, tmp_path: Path
) -> None:
    """Their settings where the file has none, and a single number for one side or for both."""
    tree = {"image_processor_type": name, **keys}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(tree))
    side = keys.get("crop_size", 224)
    model = replace(
        Run.open(vit).recipe.model, input=PatchEmbeddingConfig(size=(side, side), patch=8)
    )
    reads = preprocessing_of([tmp_path], model)
    processor = getattr(transformers, f"{name}Pil").from_pretrained(tmp_path)
    for file in sorted(vit.glob("*.png")):
        picture = transformers.image_utils.load_image(str(file))
        theirs = processor(picture, return_tensors="pt")["pixel_values"][0]
        assert_close(reads.read(file, "x"), theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["DeiTFeatureExtractor", "DeiTImageProcessorFast"])
def test_other_names_and_keys_of_a_class(name: str, vit: Path, tmp_path: Path) -> None:
    model = replace(Run.open(vit).recipe.model, input=PatchEmbeddingConfig())
    key = "feature_extractor_type" if "Feature" in name else "image_processor_type"
    trees = (
        {"image_processor_type": "DeiTImageProcessor"},
        {key: name, "_valid_processor_keys": ["a"]},
    )
    found = []
    for tree in trees:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(tree))
        found.append(preprocessing_of([tmp_path], model))
    assert found[0] == found[1]


def test_the_transparency_of_a_file_is_ignored(vit: Path, tmp_path: Path) -> None:
    """As `transformers` reads files; a picture that Python has opened it puts on white."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[..., 0], pixels[4:, :, 3] = 200, 255
    file = tmp_path / "clear.png"
    pillow.fromarray(pixels, "RGBA").save(file)
    keys = {"size": {"height": 8, "width": 8}, "do_center_crop": False, "do_normalize": False}
    tree = {"image_processor_type": "CLIPImageProcessor", **keys}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(tree))
    model = replace(Run.open(vit).recipe.model, input=PatchEmbeddingConfig(size=(8, 8), patch=4))
    ours = preprocessing_of([tmp_path], model).read(file, "x")
    processor = transformers.CLIPImageProcessorPil(**keys)
    theirs = processor(str(file), return_tensors="pt")["pixel_values"][0]
    assert_close(ours, theirs, rtol=0, atol=1e-6)
    opened = processor(pillow.open(file), return_tensors="pt")["pixel_values"][0]
    assert (opened[:, :4] == 1).all()
    assert (ours[:, :4] < 1).all()


def smoothed(pixels: np.ndarray, size: int) -> np.ndarray:
    """A triangle as wide as a new pixel, over the old ones, along the first axis."""
    scale = len(pixels) / size
    places = np.arange(len(pixels)) + 0.5
    rows = [np.maximum(0, 1 - abs(places - (i + 0.5) * scale) / max(scale, 1)) for i in range(size)]
    return np.stack([row / row.sum() for row in rows]) @ pixels


def test_dinov3_resizes_numbers_instead_of_bytes(vit: Path, tmp_path: Path) -> None:
    tree = {
        "image_processor_type": "DINOv3ViTImageProcessorFast",
        "size": {"height": 16, "width": 24},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(tree))
    reads = preprocessing_of([tmp_path], Run.open(vit).recipe.model)
    for name in ("rgb.png", "small.png"):
        pixels = np.asarray(pillow.open(vit / name), np.float64) / 255
        small = smoothed(
            np.moveaxis(
                smoothed(pixels.reshape(len(pixels), -1), 16).reshape(16, -1, 3), 1, 0
            ).reshape(pixels.shape[1], -1),
            24,
        )
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        expected = (
            np.moveaxis(small.reshape(24, 16, 3), (0, 1, 2), (2, 1, 0)) - mean[:, None, None]
        ) / std[:, None, None]
        assert_close(
            reads.read(vit / name, "x").double(), torch.from_numpy(expected), rtol=0, atol=1e-5
        )


def test_vit_classifies_and_embeds(vit: Path, addnorm: Command) -> None:
    model = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    files = sorted(vit.glob("*.png"))
    code, out, err = addnorm("classify", vit, *files, "--json")
    assert code == 0, err
    for line, file in zip(out.splitlines(), files, strict=True):
        expected = theirs_of(vit, file, model).logits[0].softmax(-1).tolist()
        found = json.loads(line)
        assert found["file"] == str(file)
        assert list(found["probabilities"].values()) == pytest.approx(expected, abs=1e-4)
    code, out, err = addnorm("embed", vit, *files, "--pooling", "first")
    assert code == 0, err
    body = model.vit
    for line, file in zip(out.splitlines(), files, strict=True):
        state = theirs_of(vit, file, body).last_hidden_state[0, 0]
        assert_close(torch.tensor(json.loads(line)), state, rtol=0, atol=1e-4)


def test_an_image_model_rejects_other_inputs(vit: Path, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "text.txt").write_text("a text")
    for words, said in (
        (["classify", vit, tmp_path / "text.txt"], "text.txt is not readable as a picture"),
        (["classify", vit], "name the image or sound files to read"),
        (["generate", vit, vit / "rgb.png"], "writes no text: use `addnorm classify`"),
        (["generate", vit, "--prompt", "x"], "leave out --prompt"),
        (["fill", vit, "--text", "x"], "fills no masks"),
        (["look", vit, "a text"], "reads images, not text"),
    ):
        code, out, err = addnorm(*words)
        assert (code, out) == (2, ""), words
        assert said in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_processor_type": "ConvNextImageProcessor"}, "ConvNextImageProcessor"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"size": {"longest_edge": 9}}, "give height and width, or shortest_edge"),
        ({"do_pad": True}, "do_pad"),
        ({"do_reduce_labels": True}, "do_reduce_labels = True is not supported"),
        ({"size": {"height": 16, "width": 24}}, "makes it 16 × 24 pixels, but the model reads 24"),
    ],
)
def test_unsupported_preprocessor_settings_are_refused(
    changes: dict[str, Any], said: str, vit: Path, tmp_path: Path
) -> None:
    tree = json.loads((vit / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**tree, **changes}))
    model = Run.open(vit).recipe.model
    with pytest.raises(InputError) as caught:
        preprocessing_of([tmp_path], model).read(vit / "rgb.png", "rgb.png")
    assert said in str(caught.value)
    with pytest.raises(InputError, match=r"no preprocessor_config\.json"):
        preprocessing_of([tmp_path / "none"], model)


def test_data_that_are_scaled_otherwise_are_refused(vit: Path, addnorm: Command) -> None:
    data = ["--data.kind", "image_files", "--data.train", vit / "*.png", "--data.image_size"]
    batching = ["--train.batching", "{ kind = 'examples' }"]
    code, out, err = addnorm("evaluate", vit, *data, "[24, 24]", *batching)
    assert (code, out) == (2, "")
    assert "pixels are scaled by image_mean = [0.485, 0.456, 0.406]" in err


def test_grey_pictures(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8)
    pillow.fromarray(pixels).save(tmp_path / "grey.png")
    (tmp_path / "preprocessor_config.json").write_text(
        '{"size": 4, "image_mean": 0, "image_std": [1]}'
    )
    model: Any = type("Model", (), {})()
    model.input, model.max_len = PatchEmbeddingConfig(size=(4, 4), channels=1, patch=2), 4
    reads = preprocessing_of([tmp_path], model)
    assert isinstance(reads, Pictures)
    small = np.array(pillow.fromarray(pixels).resize((4, 4), 2), np.float32)
    assert_close(reads.read(tmp_path / "grey.png", "x")[0], torch.from_numpy(small) / 255)


# Whisper


def tokens(n: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    words = {f"w{i}": i for i in range(n)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in SPECIAL])
    return tokenizer


SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>",
           "<|translate|>", "<|notimestamps|>")  # fmt: skip
END, START, EN, DE, TRANSCRIBE, TRANSLATE, NO_STAMPS = range(40, 47)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that hears two seconds, and its clips."""
    folder = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        vocab_size=47, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=20,
        max_source_positions=100, max_target_positions=24, init_std=0.7, pad_token_id=END,
        bos_token_id=END, eos_token_id=END, decoder_start_token_id=START,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=2).save_pretrained(folder)
    tokens(40).save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    rng = np.random.default_rng(0)
    for name, seconds in (("short.wav", 0.7), ("whole.wav", 2.0)):
        n = int(16_000 * seconds)
        wave = 0.3 * np.sin(np.arange(n) * rng.uniform(0.05, 0.3)) + 0.05 * rng.normal(size=n)
        soundfile.write(folder / name, wave.astype(np.float32), 16_000)
    return folder


GENERATION: dict[str, dict[str, Any]] = {
    "plain": {},
    "suppressed": {"suppress_tokens": [3, 5, 7, 11], "begin_suppress_tokens": [1, 2, 9, END]},
    "at most": {"max_new_tokens": 7},
    "detected": {"lang_to_id": {"<|en|>": EN, "<|de|>": DE},
                 "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
                 "no_timestamps_token_id": NO_STAMPS, "is_multilingual": True},
    "german": {"lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "language": "<|de|>",
               "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
               "no_timestamps_token_id": NO_STAMPS, "is_multilingual": True},
    "translated": {"lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "language": "de",
                   "task": "translate",
                   "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
                   "no_timestamps_token_id": NO_STAMPS, "is_multilingual": True},
    "forced": {"forced_decoder_ids": [[1, EN], [2, TRANSCRIBE], [3, NO_STAMPS]],
               "no_timestamps_token_id": NO_STAMPS},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GENERATION)
def test_whisper_transcribes(name: str, whisper: Path, addnorm: Command) -> None:
    file = whisper / "generation_config.json"
    ids = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END,
           "decoder_start_token_id": START, "max_length": 20}  # fmt: skip
    file.write_text(json.dumps({**ids, **GENERATION[name]}))
    model = transformers.WhisperForConditionalGeneration.from_pretrained(whisper).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(whisper)
    tokenizer = tokens(40)
    clips = sorted(whisper.glob("*.wav"))
    code, out, err = addnorm("generate", whisper, *clips, "--json")
    assert code == 0, err
    for line, clip in zip(out.splitlines(), clips, strict=True):
        wave, rate = soundfile.read(clip, dtype="float32")
        features = extractor(wave, sampling_rate=rate, return_tensors="pt")["input_features"]
        written = model.generate(features, return_timestamps=False)[0].tolist()
        assert json.loads(line)["text"] == tokenizer.decode(written, skip_special_tokens=True)
    code, out, err = addnorm("embed", whisper, clips[0])
    assert code == 0, err
    wave, rate = soundfile.read(clips[0], dtype="float32")
    features = extractor(wave, sampling_rate=rate, return_tensors="pt")["input_features"]
    with torch.no_grad():
        mean = model.model.encoder(features).last_hidden_state[0].mean(0)
    assert_close(torch.tensor(json.loads(out)), mean, rtol=0, atol=1e-4)


def test_whisper_rejects_text_and_clips_too_long_or_too_loud(
    whisper: Path, tmp_path: Path, addnorm: Command
) -> None:
    (tmp_path / "text.txt").write_text("a text")
    soundfile.write(tmp_path / "long.wav", np.zeros(40_000, np.float32), 16_000)
    soundfile.write(tmp_path / "loud.wav", np.full(4_000, 1e20, np.float32), 16_000, "FLOAT")
    for words, said in (
        (["generate", whisper, tmp_path / "text.txt"], "text.txt is not readable as sound"),
        (["generate", whisper, tmp_path / "long.wav"], "2.5 s of sound, but this model reads 2 s"),
        (["generate", whisper, tmp_path / "loud.wav"], "loud.wav is too loud: its samples reach"),
        (["generate", whisper, "--prompt", "x"], "leave out --prompt"),
        (["classify", whisper, whisper / "short.wav"], "has no classes: use `addnorm generate`"),
    ):
        code, out, err = addnorm(*words)
        assert (code, out) == (2, ""), words
        assert said in err
        assert err.count("\n") == 1


# Copies


def _quantized(folder: Path, out: Path) -> None:
    quantize_run(Run.open(folder), out, Int8Config(activations=DynamicConfig()))


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "save": lambda folder, out: Run.open(folder).save(out),
    "swap": lambda folder, out: swap_run(
        Run.open(folder), out, SwapOptions(sets=("residual.kind=pre",))
    ),
    "quantize": _quantized,
    "hf": lambda folder, out: export_run(Run.open(folder), out, to="hf"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRITERS)
def test_a_copy_reads_files_as_the_folder_does(name: str, vit: Path, tmp_path: Path) -> None:
    WRITERS[name](vit, tmp_path / "out")
    theirs, ours = (
        preprocessing_of([folder], Run.open(folder).recipe.model)
        for folder in (vit, tmp_path / "out")
    )
    assert theirs == ours
    read = {"data.kind": "image_files", "data.train": "train", "data.image_size": "[24, 24]"}
    runs = [Run.open(folder, read) for folder in (vit, tmp_path / "out")]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(vit)}))
    for run in (*runs, replace(runs[0], folder=adapter)):
        assert isinstance(run.recipe.train.batching, ExamplesConfig)
        with pytest.raises(InputError, match="pixels are scaled by image_mean"):
            check_read_alike(run)


@pytest.mark.long
@pytest.mark.parametrize("name", WRITERS)
def test_a_copy_of_whisper_begins_its_texts_alike(
    name: str, whisper: Path, tmp_path: Path, addnorm: Command
) -> None:
    folder, out = tmp_path / "whisper", tmp_path / "out"
    shutil.copytree(whisper, folder)
    file = folder / "generation_config.json"
    keys = GENERATION["german"] | {"decoder_start_token_id": START, "eos_token_id": END}
    file.write_text(json.dumps(keys))
    WRITERS[name](folder, out)
    assert speech_prompt([out]) == speech_prompt([folder])
    read = {"data.kind": "audio", "data.train": str(folder), "data.labels": "text"}
    read |= {"data.n_mels": "20"}
    for one in (folder, out):
        with pytest.raises(InputError, match="its texts begin with a language and a task"):
            check_read_alike(Run.open(one, read))
    clip = str(folder / "short.wav")
    texts = [addnorm("generate", one, clip, "--max-new-tokens", "4") for one in (folder, out)]
    assert texts[0][0] == texts[1][0] == 0, texts
    if name != "quantize":
        assert texts[0] == texts[1]


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
        with pytest.raises(InputError, match="makes it 32 × 48 pixels, but the model reads 16"):
            list(classify_files(Run.open(tmp_path / "hf"), [other]))


@pytest.mark.parametrize(
    "data",
    [
        replace(ARRAYS, pool=2),
        replace(ARRAYS, permute_seed=1),
        None,
    ],
)
def test_data_without_an_equivalent_are_not_described(
    data: DataConfig | None, tmp_path: Path
) -> None:
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
        with pytest.raises(InputError, match="its settings resize pictures differently"):
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
