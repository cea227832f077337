"""Classifying image and sound files with a trained model, read as its training data were."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from addnorm.data import (
    AudioConfig,
    DatasetConfig,
    ImageFilesConfig,
    ImagesConfig,
    medium_of,
)
from addnorm.data.frames import side_by_side
from addnorm.data.image_files import read_image
from addnorm.data.images import scaled
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.runs.run import Run
from addnorm.runs.types import Classified


def reads_files(run: Run) -> bool:
    """Whether the model reads images or sound, each in a file of its own, and no lines of text."""
    return medium_of(run.recipe.data) in ("images", "audio")


@torch.inference_mode()
def classify_files(
    run: Run,
    files: Sequence[Path],
    *,
    errors: Literal["stop", "skip"] = "stop",
    skipped: Callable[[InputError], None] = lambda _: None,
    batch_size: int = 64,
) -> Iterator[tuple[Path, Classified]]:
    """The class of each image or clip, in the order of the files.

    Raises `InputError` for a file that cannot be read, or leaves it out and hands the error to
    `skipped`.
    """
    if run.task != "classification":
        raise InputError(f"{run.name}: a {run.task} model has no classes")
    read = _reader(run)
    for start in range(0, len(files), batch_size):
        some: list[tuple[Path, Tensor]] = []
        for file in files[start : start + batch_size]:
            try:
                some.append((file, read(file)))
            except InputError as error:
                if errors == "stop":
                    raise
                skipped(error)
        if some:
            yield from zip([file for file, _ in some], _classified(run, some), strict=True)


def _reader(run: Run) -> Callable[[Path], Tensor]:
    """The function that reads a file as the run's data were read."""
    data, model = run.recipe.data, run.recipe.model
    if isinstance(data, AudioConfig | ImageFilesConfig | DatasetConfig):
        return lambda file: data.read(_there(file), str(file))
    assert isinstance(data, ImagesConfig)
    assert isinstance(model, EncoderConfig)
    assert isinstance(model.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)
    height, width = (side * data.pool for side in model.input.size)
    channels = model.input.channels

    def read(file: Path) -> Tensor:
        pixels = read_image(_there(file), str(file), (height, width), channels)
        return data.arranged(pixels[None])[0]

    return read


def _there(file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"{file}: {'is no file' if file.exists() else 'does not exist'}")
    return file


def _classified(run: Run, some: Sequence[tuple[Path, Tensor]]) -> Iterator[Classified]:
    signals = [signal for _, signal in some]
    if medium_of(run.recipe.data) == "audio":
        batches = [side_by_side(signals)]
    elif len({signal.shape for signal in signals}) == 1:
        batches = [{"inputs": scaled(torch.stack(signals))}]
    else:  # of several sizes, one by one
        batches = [{"inputs": scaled(signal[None])} for signal in signals]
    for inputs in batches:
        logits = run.model(**{name: tensor.to(run.device) for name, tensor in inputs.items()})
        for row in logits.softmax(-1).tolist():
            by_label: dict[str, float] = dict(zip(run.labels, row, strict=True))
            best = max(by_label, key=by_label.__getitem__)
            yield Classified(best, (best,), by_label)
