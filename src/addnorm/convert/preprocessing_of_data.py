"""The `preprocessor_config.json` that describes how a run reads its data."""

from dataclasses import dataclass, field
from typing import Any

from addnorm.convert.preprocessing import BICUBIC, Pictures
from addnorm.data import AudioConfig, DatasetConfig, ImageFilesConfig, ImagesConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.patches import PatchEmbeddingConfig

WHISPER_RATE = 16_000
"""The samples a second of every Whisper model."""

FITTED = "cut at the middle to the shape of the model's, then scaled; there scaled, then cut"
KEPT = "cut at the middle to the shape of the model's, then scaled; there only of the model's size"


@dataclass(frozen=True)
class DataReading:
    """The keys of the file, empty if it cannot describe the data, and the settings it lacks."""

    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    left: dict[str, Any] = field(default_factory=dict[str, Any])


def reading_of(data: object, model: Any) -> DataReading:
    """How a run reads the data of a model of patches or log-mel frames."""
    reads = getattr(model, "input", None)
    if isinstance(reads, PatchEmbeddingConfig):
        pictures = pictures_of(data, reads.size, reads.channels)
        return DataReading() if pictures is None else _of_pictures(pictures)
    if isinstance(reads, LogMelEmbeddingConfig) and isinstance(data, AudioConfig):
        return _of_sound(data, model.max_len)
    return DataReading()


def pictures_of(data: object, size: tuple[int, int], channels: int) -> Pictures | None:
    """How data of pictures are read, up to the order of cutting and scaling; None of others.

    Pixels are scaled to [-1, 1]. Pixels that are averaged or shuffled have no form there.
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
        "transparent": "white; there the colour that stands in the file",
    }
    return DataReading(keys, left)


def _of_sound(data: AudioConfig, max_len: int) -> DataReading:
    """`max_len` positions, one for every 20 ms, are seconds that Whisper pads every clip to."""
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
    length = f"clips are as long as they are; there every clip has silence to {seconds} s"
    return DataReading(keys, {"length": length})
