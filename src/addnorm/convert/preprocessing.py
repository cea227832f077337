"""Preprocessing of images and sound in a Hugging Face folder: reading and writing its settings."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from addnorm.convert.core.modules import find_file
from addnorm.convert.core.settings import Settings
from addnorm.data import AudioConfig, DatasetConfig, ImageFilesConfig, ImagesConfig
from addnorm.data.readers.audio import log_mel_of, read_audio, standardised
from addnorm.data.readers.images import read_image
from addnorm.errors import InputError
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.waveform import WaveformEmbeddingConfig

FILE, NESTED = "preprocessor_config.json", "processor_config.json"
"""transformers 5 writes the second for models that read two media, with a table for each."""

NEAREST, BILINEAR, BICUBIC = 0, 2, 3
"""Pillow's numbers of three resizing filters, as stored in the file."""

FILTERS = {NEAREST: "nearest-exact", BILINEAR: "bilinear", BICUBIC: "bicubic"}
"""torch's names of these filters."""

CLASS_KEYS = ("image_processor_type", "feature_extractor_type")


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """The defaults of one of transformers' image processor classes."""

    size: int = 224
    square: bool = True
    """Whether a single number is both sides, not the shorter one."""
    crops: bool = False
    resample: int = BICUBIC
    mean: tuple[float, ...] = (0.5,) * 3
    std: tuple[float, ...] = (0.5,) * 3
    any_size: bool = False
    """Whether its models read pictures of any size that their patches tile."""
    resizes: Literal["bytes", "numbers"] = "bytes"
    """Whether an image is resized in 8 bits, or after the factor, in float32."""


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

IMAGE_PROCESSORS: Mapping[str, ImageProcessor] = {
    "ViTImageProcessor": ImageProcessor(resample=BILINEAR),
    "DeiTImageProcessor": ImageProcessor(size=256, crops=True),
    "BitImageProcessor": ImageProcessor(
        square=False, crops=True, mean=CLIP_MEAN, std=CLIP_STD, any_size=True
    ),
    "CLIPImageProcessor": ImageProcessor(square=False, crops=True, mean=CLIP_MEAN, std=CLIP_STD),
    "SiglipImageProcessor": ImageProcessor(),
    "DINOv3ViTImageProcessor": ImageProcessor(
        resample=BILINEAR, mean=IMAGENET_MEAN, std=IMAGENET_STD, any_size=True, resizes="numbers"
    ),
}
"""The classes that read images; older names end in `FeatureExtractor`."""

FEATURE_EXTRACTORS = ("WhisperFeatureExtractor",)
WAVEFORM_READERS = ("Wav2Vec2FeatureExtractor",)
WITHOUT_EFFECT = (
    "processor_class", "image_processor_type", "feature_extractor_type", "auto_map",
    "data_format", "input_data_format", "return_tensors", "device", "disable_grouping",
    "do_convert_rgb", "default_to_square", "image_seq_length", "_valid_processor_keys",
)  # fmt: skip
"""Keys without an effect on the pixels of an image, which is always read in colour."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images at the model's size, with each channel as `(factor · pixel - mean) / std`.

    `transformers` reads the file of an image upright and in colours, ignores its transparency,
    resizes it with Pillow in 8 bits, and crops its centre; for DINOv3 it resizes `factor · pixel`
    in float32. Only a picture that Python has opened for the classes of CLIP, SigLIP and BiT is
    put on white where it is transparent, so that `transformers` itself has two answers.
    """

    size: tuple[int, int]
    channels: int
    resize: tuple[int, int] | int | None
    """A height and a width, or the shorter side; None keeps the size of an image."""
    resample: int
    crop: tuple[int, int] | None
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    any_size: bool = False
    """Whether the model reads pictures of other sizes too."""
    resizes: Literal["bytes", "numbers"] = "bytes"

    def read(self, file: Path, where: str) -> Float[Tensor, "channels height width"]:
        """Read an image as the model's input. Raises `InputError` if that is not possible."""
        pixels = read_image(file, where, None, self.channels, transparent="dropped")
        pixels = self._cropped(self._scaled(pixels), where)
        if not self.any_size and tuple(pixels.shape[1:]) != self.size:
            height, width = pixels.shape[1:]
            raise InputError(
                f"{where}: {FILE} makes it {height} × {width} pixels, but the model reads "
                f"{self.size[0]} × {self.size[1]}"
            )
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.mean, self.std))
        return (pixels - mean) / std

    @property
    def keeps_its_size(self) -> bool:
        """Whether an image that has the model's size is neither resized nor cropped."""
        height, width = self.size
        resized = self.resize in (None, self.size)
        resized = resized or (isinstance(self.resize, int) and self.resize == min(height, width))
        return resized and self.crop in (None, self.size)

    def _scaled(self, pixels: UInt8[Tensor, "channels rows columns"]) -> Tensor:
        """`factor · pixel`, with resizing before or after the multiplication."""
        if self.resize is None:
            return pixels.float() * self.factor
        size = self.resize if isinstance(self.resize, tuple) else self._shorter(pixels)
        if self.resizes == "bytes":
            return self._resized(pixels, size).float() * self.factor
        wide = pixels.float()[None] * self.factor
        if tuple(wide.shape[2:]) == size:
            return wide[0]
        mode, smooth = FILTERS[self.resample], self.resample != NEAREST
        return F.interpolate(wide, size, mode=mode, antialias=smooth)[0]

    def _resized(
        self, pixels: UInt8[Tensor, "channels rows columns"], size: tuple[int, int]
    ) -> Tensor:
        from PIL import Image as pillow

        height, width = size
        array: Any = pixels.movedim(0, -1).squeeze(-1).numpy()
        picture: Any = pillow.fromarray(array).resize((width, height), self.resample)  # pyright: ignore[reportArgumentType]
        resized = torch.tensor(bytearray(picture.tobytes()), dtype=torch.uint8)
        return resized.view(height, width, self.channels).movedim(-1, 0)

    def _shorter(self, pixels: Tensor) -> tuple[int, int]:
        """The height and width after the shorter side is resized to `resize`."""
        height, width = pixels.shape[1:]
        assert isinstance(self.resize, int)
        longer = int(self.resize * max(height, width) / min(height, width))
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def _cropped(self, pixels: Tensor, where: str) -> Tensor:
        if self.crop is None:
            return pixels
        (height, width), (rows, columns) = pixels.shape[1:], self.crop
        if rows > height or columns > width:
            raise InputError(
                f"{where} has {height} × {width} pixels, fewer than crop_size in {FILE}"
            )
        top, left = (height - rows) // 2, (width - columns) // 2
        return pixels[:, top : top + rows, left : left + columns]


@dataclass(frozen=True, kw_only=True)
class Sound:
    """The log-mel frames of a clip, padded with silence to the duration that the model reads."""

    n_mels: int
    sample_rate: int
    seconds: int

    @property
    def n_frames(self) -> int:
        """The number of frames, 10 ms each, that the model reads at once."""
        return 100 * self.seconds

    def read(self, file: Path, where: str) -> Float[Tensor, "n_mels frames"]:
        """Read a clip as the model's input. Raises `InputError` for one that is too long."""
        frames, n = self.read_whole(file, where)
        if n > self.n_frames:
            raise self.too_long(where, n, "cut it into shorter parts")
        return frames[:, : self.n_frames]

    def read_whole(self, file: Path, where: str) -> tuple[Float[Tensor, "n_mels frames"], int]:
        """Read a sound of any length; return its frames, and their number without added silence."""
        waveform, rate = read_audio(file, where, sample_rate=self.sample_rate, mix=True)
        missing = max(0, self.seconds * rate - waveform.shape[-1])
        padded = torch.nn.functional.pad(waveform[0], (0, missing))
        frames = log_mel_of(padded, where, rate, self.n_mels)
        return frames, max(1, 100 * waveform.shape[-1] // rate)

    def too_long(self, where: str, n_frames: int, instead: str) -> InputError:
        """The error for a sound with more frames than the model reads at once."""
        return InputError(
            f"{where}: {n_frames / 100:.1f} s of sound, but this model reads {self.seconds} s at "
            f"once: {instead}"
        )


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a clip of any length, with mean zero and variance one if `standard`."""

    sample_rate: int
    standard: bool
    least: int
    """The fewest samples that the model reads."""

    def read(self, file: Path, where: str) -> Float[Tensor, "1 samples"]:
        """Read a clip as the model's input. Raises `InputError` for one that is too short."""
        waveform, _ = read_audio(file, where, sample_rate=self.sample_rate, mix=True)
        if waveform.shape[-1] < self.least:
            raise InputError(
                f"{where}: {waveform.shape[-1]} samples of sound at {self.sample_rate:,} a second, "
                f"but this model reads at least {self.least}"
            )
        return standardised(waveform[0])[None] if self.standard else waveform


def written_preprocessing(places: Sequence[Path]) -> dict[str, Any]:
    """The keys of the first preprocessor file in `places`; empty if there is none."""
    file = find_file(places, NESTED, FILE)
    return {} if file is None else dict(Settings.of(file.parent, file.name).tree)


def write_preprocessing(out: Path, keys: Mapping[str, Any]) -> None:
    """Write the preprocessor file to a model's folder; nothing if `keys` is empty."""
    if keys:
        (out / FILE).write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")


def copy_preprocessing(places: Sequence[Path], out: Path) -> None:
    """Copy the preprocessor files in `places` to a copy of the model."""
    for name in (FILE, NESTED):
        if (file := find_file(places, name)) is not None:
            (out / name).write_bytes(file.read_bytes())


def preprocessing_of(places: Sequence[Path], model: Any) -> Pictures | Sound | Samples:
    """How a folder's model reads files.

    Raises `InputError` if the file is missing, and for a key that is not supported.
    """
    reads, max_len = model.input, model.max_len
    if isinstance(reads, LogMelEmbeddingConfig):
        return _sound(
            _settings(places, "feature_extractor", FEATURE_EXTRACTORS), reads.n_mels, max_len
        )
    if isinstance(reads, WaveformEmbeddingConfig):
        return _samples(_settings(places, "feature_extractor", WAVEFORM_READERS), reads)
    assert isinstance(reads, PatchEmbeddingConfig)
    return _pictures(_settings(places, "image_processor", IMAGE_PROCESSORS), reads)


def _settings(places: Sequence[Path], table: str, classes: Collection[str]) -> Settings:
    """The keys of the folder's preprocessor file, or of this medium's table in a joint file."""
    settings = None
    if (nested := find_file(places, NESTED)) is not None:
        settings = Settings.of(nested.parent, NESTED).table(table)
    if settings is None:
        file = find_file(places, FILE)
        if file is None:
            raise InputError(
                f"{places[0]}: no {FILE}, which defines how files become the model's input: copy "
                "it from the folder that the model came from, or use the run that was exported"
            )
        settings = Settings.of(file.parent, FILE)
    for key in CLASS_KEYS:
        name = settings.get(key, "")
        if name and _class_of(name) not in classes:
            raise settings.refuse(key, f"only {' and '.join(sorted(classes))} are")
    settings.ignore(*WITHOUT_EFFECT)
    return settings


def _class_of(name: str) -> str:
    """The current name of a processor class, without the suffix for its backend."""
    name = name.removesuffix("Fast").removesuffix("Pil")
    now = name.replace("FeatureExtractor", "ImageProcessor")
    return now if now in IMAGE_PROCESSORS else name


def _pictures(settings: Settings, reads: PatchEmbeddingConfig) -> Pictures:
    names = [str(settings.tree[key]) for key in CLASS_KEYS if settings.tree.get(key)]
    usual = IMAGE_PROCESSORS[_class_of(names[0]) if names else "ViTImageProcessor"]
    resize = _resize(settings, usual) if settings.get("do_resize", True) else None
    crops = settings.get("do_center_crop", usual.crops)
    crop = _side(settings, "crop_size", 224) if crops else None
    if isinstance(crop, int):
        raise settings.refuse("crop_size", "give height and width")
    normal = settings.get("do_normalize", True)
    scaled = settings.get("do_rescale", True)
    factor = settings.get("rescale_factor", 1 / 255)
    mean, std = (
        _numbers(settings, key, reads.channels, default)
        for key, default in (("image_mean", usual.mean), ("image_std", usual.std))
    )
    resample = settings.get("resample", usual.resample)
    if usual.resizes == "numbers" and resample not in FILTERS:
        raise settings.refuse("resample", f"give one of {', '.join(map(str, FILTERS))}")
    settings.ignore("size", "crop_size")
    settings.expect("do_pad", False)
    settings.check_all_read()
    none = (0.0,) * reads.channels
    return Pictures(
        size=reads.size,
        channels=reads.channels,
        resize=resize,
        resample=resample,
        crop=crop,
        factor=factor if scaled else 1.0,
        mean=mean if normal else none,
        std=std if normal else (1.0,) * reads.channels,
        any_size=usual.any_size,
        resizes=usual.resizes,
    )


def _resize(settings: Settings, usual: ImageProcessor) -> tuple[int, int] | int:
    """The height and width, or the length of the shorter side."""
    size = _side(settings, "size", usual.size)
    given = settings.tree.get("size")
    return (
        size[0]
        if not usual.square and isinstance(size, tuple) and not isinstance(given, dict)
        else size
    )


def _side(settings: Settings, key: str, default: int) -> tuple[int, int] | int:
    """A height and a width (one number for both), or the length of the shorter side."""
    if isinstance(settings.tree.get(key), dict):
        table = settings.table(key)
        assert table is not None
        given = {name for name, value in table.tree.items() if value is not None}
        if given == {"shortest_edge"}:
            return table.required_int("shortest_edge")
        if given != {"height", "width"}:
            raise settings.refuse(key, "give height and width, or shortest_edge")
        return table.required_int("height"), table.required_int("width")
    return settings.int_pair(key, default)


def _numbers(settings: Settings, key: str, n: int, default: tuple[float, ...]) -> tuple[float, ...]:
    """A number for each channel; a single number is for all channels."""
    settings.ignore(key)
    value: object = settings.tree.get(key, list(default) if n == len(default) else 0.5)
    values = cast(list[object], value) if isinstance(value, list) else [value] * n
    numbers = [float(number) for number in values if isinstance(number, int | float)]
    if len(numbers) != n or len(values) != n:
        raise settings.refuse(key, f"give {n} numbers, one for each channel")
    return tuple(numbers)


def _sound(settings: Settings, n_mels: int, max_len: int) -> Sound:
    rate = 16_000
    settings.expect("sampling_rate", rate)
    settings.expect("n_fft", rate // 40)
    settings.expect("hop_length", rate // 100)
    settings.expect("dither", 0.0)
    settings.expect("padding_value", 0.0)
    settings.expect("padding_side", "right")
    settings.expect("do_normalize", False)
    settings.expect("feature_size", n_mels, n_mels)
    if settings.get("feature_size", 80) != n_mels:
        raise settings.refuse("feature_size", f"the model takes {n_mels}")
    seconds = settings.get("chunk_length", 30)
    if 50 * seconds != max_len:
        raise settings.refuse("chunk_length", f"the model takes {max_len / 50:g} s")
    settings.ignore("mel_filters", "n_samples", "nb_max_frames", "return_attention_mask")
    settings.check_all_read()
    return Sound(n_mels=n_mels, sample_rate=rate, seconds=seconds)


def _samples(settings: Settings, reads: WaveformEmbeddingConfig) -> Samples:
    settings.expect("feature_size", 1)
    settings.expect("feature_dim", 1)  # an older name
    settings.expect("padding_value", 0.0)
    settings.expect("padding_side", "right")
    settings.ignore("return_attention_mask")  # padding takes no part here
    rate = settings.optional_int("sampling_rate", missing=16_000) or 16_000
    standard = settings.get("do_normalize", True)
    settings.check_all_read()
    return Samples(sample_rate=rate, standard=standard, least=reads.least)


# Writing: the file that describes how a run reads its data.

WHISPER_RATE = 16_000
"""The samples a second of every Whisper model."""

FITTED = "cropped to the model's aspect ratio, then scaled; there scaled, then cropped"
KEPT = "cropped to the model's aspect ratio, then scaled; there only images of the model's size"


@dataclass(frozen=True)
class DataReading:
    """The preprocessor keys for some data, empty if there are none, and settings they lack."""

    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    left: dict[str, Any] = field(default_factory=dict[str, Any])


def reading_of(data: object, model: Any) -> DataReading:
    """The preprocessor keys for a run's data, for a model of patches or of sound."""
    reads = getattr(model, "input", None)
    if isinstance(reads, PatchEmbeddingConfig):
        pictures = pictures_of(data, reads.size, reads.channels)
        return DataReading() if pictures is None else _of_pictures(pictures)
    if isinstance(reads, LogMelEmbeddingConfig) and isinstance(data, AudioConfig):
        return _of_sound(data, model.max_len)
    if isinstance(reads, WaveformEmbeddingConfig) and isinstance(data, AudioConfig):
        return DataReading(_of_samples(data, reads)) if data.form == "waveform" else DataReading()
    return DataReading()


def _of_samples(data: AudioConfig, reads: WaveformEmbeddingConfig) -> dict[str, Any]:
    return {
        "feature_extractor_type": WAVEFORM_READERS[0],
        "feature_size": 1,
        "sampling_rate": data.sample_rate,
        "padding_side": "right",
        "padding_value": 0.0,
        "do_normalize": True,
        "return_attention_mask": reads.layer_norms == "every",
    }


def pictures_of(data: object, size: tuple[int, int], channels: int) -> Pictures | None:
    """How image data are read, apart from the order of crop and scale; None for other data.

    Pixels are scaled to [-1, 1]. The file cannot describe averaged or shuffled pixels.
    """
    if isinstance(data, ImagesConfig):
        if data.pool != 1 or data.permute_seed is not None:
            return None
    elif not isinstance(data, ImageFilesConfig | DatasetConfig):
        return None
    height, width = size
    own = isinstance(data, ImageFilesConfig) and data.image_size == "own"
    fitted = height == width and not own
    half = (0.5,) * channels
    return Pictures(
        size=size,
        channels=channels,
        resize=height if fitted else None,
        resample=BICUBIC,
        crop=size if fitted else None,
        factor=1 / 255,
        mean=half,
        std=half,
    )


def _of_pictures(pictures: Pictures) -> DataReading:
    (height, width), resize = pictures.size, pictures.resize
    keys: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": pictures.channels == 3,
        "do_resize": resize is not None,
        "size": {"height": height, "width": width} if resize is None else {"shortest_edge": resize},
        "resample": pictures.resample,
        "do_center_crop": pictures.crop is not None,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": pictures.factor,
        "do_normalize": True,
        "image_mean": list(pictures.mean),
        "image_std": list(pictures.std),
    }
    left = {
        "size": KEPT if resize is None else FITTED,
        "transparent": "white; there the colour stored in the file",
    }
    return DataReading(keys, left)


def _of_sound(data: AudioConfig, max_len: int) -> DataReading:
    """The keys for sound: Whisper pads clips to `max_len` positions of 20 ms each."""
    if data.sample_rate != WHISPER_RATE or max_len % 50:
        return DataReading()
    seconds = max_len // 50
    keys = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": data.n_mels,
        "sampling_rate": WHISPER_RATE,
        "hop_length": WHISPER_RATE // 100,
        "n_fft": WHISPER_RATE // 40,
        "chunk_length": seconds,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
        "dither": 0.0,
    }
    length = f"clips keep their length; there every clip is padded with silence to {seconds} s"
    return DataReading(keys, {"length": length})
