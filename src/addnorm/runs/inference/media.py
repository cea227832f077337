"""Classes or texts of image and sound files by a trained model, read as its data were."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.convert.core.modules import find_file, places_of
from addnorm.convert.folder import is_hf_folder
from addnorm.convert.preprocessing import FILE, NESTED, Pictures, pictures_of, preprocessing_of
from addnorm.data import (
    AudioConfig,
    Corpus,
    DatasetConfig,
    ImageFilesConfig,
    ImagesConfig,
)
from addnorm.data.batches.signals import inputs_of
from addnorm.data.media import PROPERTIES
from addnorm.data.readers.images import read_image
from addnorm.errors import InputError, refuse
from addnorm.generate import (
    DecodingConfig,
    Generated,
    TextDecoder,
    Transcription,
    Translation,
    transcribe,
)
from addnorm.models import (
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    ModelConfig,
)
from addnorm.models.inputs import embedded
from addnorm.nn.context import Context
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig, check_halves
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.runs.files.generation_config import SpeechPrompt, speech_prompt
from addnorm.runs.inference.decoding import later
from addnorm.runs.inference.predictions import predicted
from addnorm.runs.inference.results import Classified
from addnorm.runs.inference.sentence_vectors import pooled
from addnorm.runs.options import Pooling
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.classification import Classification
from addnorm.tasks.of_model import wrong_task


@torch.inference_mode()
def classify_files(
    run: TrainedModel,
    files: Sequence[Path],
    *,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, Classified]]:
    """The class of each image or clip, in the order of the files.

    A file that cannot be read is left out if `skipped` returns after taking the `InputError`; by
    default it raises it.
    """
    if not isinstance(run.task_value, Classification):
        raise wrong_task(run, "has no classes")
    read = _reader(run)
    for some in _groups(read, files, batch_size, skipped):
        yield from zip([file for file, _ in some], _classified(run, some), strict=True)


@torch.inference_mode()
def transcribe_files(
    run: TrainedModel,
    files: Sequence[Path],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, list[Generated]]]:
    """The texts of each image or clip, best first, in the order of the files.

    Raises `InputError` as `classify_files` does.
    """
    model = run.model
    if not isinstance(model, EncoderDecoderModel):
        yield from _read_off(run, files, skipped, batch_size)
        return
    target = run.tokenizers.target
    read, medium = _reader(run), run.medium
    assert medium is not None
    writer = Translation(model, target.bos_id, never=target.never_ids)
    prompt = _prompt(run)
    done = 0
    for some in _groups(read, files, batch_size, skipped):
        found = transcribe(
            Transcription(
                writer,
                [signal for _, signal in some],
                medium,
                opening=prompt.tokens,
                languages=prompt.languages,
                counted=prompt.counted,
            ),
            later(decoding, done),
            max_new_tokens=max_new_tokens,
            eos_id=target.eos_ids,
            text_decoder=TextDecoder(target),
        )
        done += len(some)
        for (file, _), best in zip(some, found, strict=True):
            yield file, best


def _read_off(
    run: TrainedModel,
    files: Sequence[Path],
    skipped: Callable[[InputError], None],
    batch_size: int,
) -> Iterator[tuple[Path, list[Generated]]]:
    """The texts that an encoder's outputs spell, without a decoder."""
    kinds = (one for one in run.task_value.examples if one.writes and one.medium == run.medium)
    kind = next(kinds, None)
    if kind is None or not run.task_value.writes_text:
        raise wrong_task(run, "writes no text")
    for some in _groups(_reader(run), files, batch_size, skipped):
        examples = [kind(signal, "") for _, signal in some]  # pyright: ignore[reportCallIssue]
        for (file, _), text in zip(some, predicted(run, examples), strict=True):
            yield file, [text]


def _prompt(run: TrainedModel) -> SpeechPrompt:
    """What texts begin with: those of Hugging Face's Whisper with language and task."""
    if not (_is_foreign(run) and run.hears):
        return SpeechPrompt()
    assert run.folder is not None
    return speech_prompt(places_of(run.folder))


def check_read_alike(run: TrainedModel, corpus: Corpus | None = None) -> None:
    """Raise `InputError` for data that are read otherwise than files of a Hugging Face folder.

    Data of pictures are scaled to [-1, 1], a mean and a deviation of 0.5, and files of them resized
    in one way. Those of sound are not padded to the seconds that Whisper hears, and their texts
    begin with no language and task.
    """
    folder, data = run.folder, corpus or run.corpus or run.recipe.data
    if data is None or not run.reads_files or folder is None:
        return
    places = places_of(folder) if is_hf_folder(folder) else (folder,)
    if (file := find_file(places, FILE, NESTED)) is None:
        return
    theirs = preprocessing_of(places, run.recipe.model)
    if not isinstance(theirs, Pictures):
        raise InputError(
            f"{file}: this model hears {theirs.seconds} s, the rest of a clip as silence, and its "
            "texts begin with a language and a task; data of sound have neither: this model cannot "
            "be measured on them; `addnorm generate` reads files as the folder says"
        )
    half = (0.5,) * theirs.channels
    if (theirs.mean, theirs.std) != (half, half) or abs(theirs.factor * 255 - 1) > 1e-6:
        raise InputError(
            f"{file}: pixels are scaled by image_mean = {list(theirs.mean)} and image_std "
            f"= {list(theirs.std)}, and data of pictures by 0.5 and 0.5: this model cannot be "
            "measured on them; `addnorm classify` reads files as the folder says"
        )
    if not _resized_alike(theirs, data):
        raise InputError(
            f"{file}: pictures are resized by other settings than data of pictures: this model "
            "cannot be measured on them; `addnorm classify` reads files as the folder says"
        )


def _resized_alike(theirs: Pictures, data: object) -> bool:
    """Whether data are resized as a folder's pictures: arrays have the model's size already."""
    if isinstance(data, ImagesConfig | Corpus) and theirs.keeps_its_size:
        return True
    ours = pictures_of(data, theirs.size, theirs.channels)
    ways = [(one.resize, one.crop, one.resample) for one in (theirs, ours) if one is not None]
    return len(ways) == 2 and ways[0] == ways[1]


def _is_foreign(run: TrainedModel) -> bool:
    """Whether a model of Hugging Face's came without data: its folder says how files are read."""
    return run.recipe.data is None and run.folder is not None


def embed_files(
    run: TrainedModel,
    files: Sequence[Path],
    pooling: Pooling | None = None,
    *,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, Float[Tensor, " width"]]]:
    """A vector for each image or clip, pooled from its final hidden states.

    Of an encoder–decoder these are the encoder's. Raises `InputError` as `classify_files` does.
    """
    read = _reader(run)
    for some in _groups(read, files, batch_size, skipped):
        vectors = _vectors(run, [signal for _, signal in some], pooling)
        yield from zip([file for file, _ in some], vectors, strict=True)


def embedded_files(
    run: TrainedModel, files: Sequence[str], pooling: Pooling | None, batch_size: int
) -> Float[Tensor, "files width"]:
    """The vectors of files, one below the other."""
    paths = [Path(file) for file in files]
    found = [vector for _, vector in embed_files(run, paths, pooling, batch_size=batch_size)]
    return torch.stack(found) if found else torch.zeros(0, run.recipe.model.d_model)


def transcribed(
    run: TrainedModel,
    files: Sequence[str],
    decoding: DecodingConfig,
    max_new_tokens: int | None,
    *,
    plain: bool,
) -> list[list[Generated]]:
    """The texts of each file; a string in `stop` and a compiled graph, not `plain`, are refused."""
    if not plain:
        raise InputError(
            f"{run.name}: the text of an image or a clip takes no stop and no compiled graph"
        )
    paths = [Path(file) for file in files]
    found = transcribe_files(run, paths, decoding, max_new_tokens=max_new_tokens)
    return [best for _, best in found]


def _groups(
    read: Callable[[Path], Tensor],
    files: Sequence[Path],
    size: int,
    skipped: Callable[[InputError], None],
) -> Iterator[list[tuple[Path, Tensor]]]:
    """Files with what is in them, in groups; none of which is empty."""
    for start in range(0, len(files), size):
        some: list[tuple[Path, Tensor]] = []
        for file in files[start : start + size]:
            try:
                some.append((file, read(file)))
            except InputError as error:
                skipped(error)
        if some:
            yield some


def _reader(run: TrainedModel) -> Callable[[Path], Tensor]:
    """The function that reads a file as the run's data were read."""
    data, model = run.recipe.data, run.recipe.model
    if _is_foreign(run):
        assert run.folder is not None
        theirs = preprocessing_of(places_of(run.folder), model)
        return lambda file: theirs.read(_there(file), str(file))
    if isinstance(data, ImageFilesConfig) and data.strings is not None:
        height, width = data.image_size
        data = replace(data, image_size=(height, width * data.strings.longest), strings=None)
    if isinstance(data, AudioConfig | ImageFilesConfig | DatasetConfig):
        return lambda file: _checked(model, data.read(_there(file), str(file)), file)
    assert isinstance(data, ImagesConfig)
    assert isinstance(model, EncoderConfig | EncoderDecoderConfig)
    assert isinstance(model.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)
    height, width = (side * data.pool for side in model.input.size)
    channels = model.input.channels

    def read(file: Path) -> Tensor:
        pixels = read_image(_there(file), str(file), (height, width), channels)
        return data.arranged(pixels[None])[0]

    return read


def _checked(model: ModelConfig, signal: Tensor, file: Path) -> Tensor:
    """The signal. Raises `InputError` for a picture of its own size that the model cannot read."""
    shape = getattr(model, "input", None)
    if isinstance(shape, ConvolutionalEmbeddingConfig):
        try:
            check_halves((signal.shape[-2], signal.shape[-1]), shape.n_layers)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
    return signal


def _there(file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"{file}: {'is no file' if file.exists() else 'does not exist'}")
    return file


@torch.inference_mode()
def _vectors(
    run: TrainedModel, signals: Sequence[Tensor], pooling: Pooling | None
) -> list[Float[Tensor, " width"]]:
    return [
        vector
        for inputs in _inputs(run, signals)
        for vector in pooled(run, *_hidden(run.model, **inputs), pooling)
    ]


def _hidden(
    model: object, inputs: Tensor, valid: Tensor | None = None
) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
    """The final hidden states of an encoder, and their context."""
    if isinstance(model, EncoderDecoderModel):
        x, ctx = embedded(model.source_embed, inputs, valid)
        return model.encoder(x, ctx), ctx
    assert isinstance(model, EncoderModel)
    return model.hidden(inputs, valid)


def _inputs(run: TrainedModel, signals: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
    """The model's inputs, in the order of the signals: one batch, or images of several sizes."""
    medium = run.medium
    assert medium is not None
    padded = PROPERTIES[medium].padded
    alone = not padded and len({signal.shape for signal in signals}) > 1
    for group in [[signal] for signal in signals] if alone else [signals]:
        ready = not padded and _is_foreign(run)
        inputs = {"inputs": torch.stack([*group])} if ready else inputs_of(medium, group)
        yield {name: tensor.to(run.device) for name, tensor in inputs.items()}


def _classified(run: TrainedModel, some: Sequence[tuple[Path, Tensor]]) -> Iterator[Classified]:
    for inputs in _inputs(run, [signal for _, signal in some]):
        for row in run.model(**inputs).softmax(-1).tolist():
            yield Classified.of(run.labels, row)
