"""Using a trained model on image and sound files, which are read like its training data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.convert.core.modules import find_file, places_of
from addnorm.convert.folder import is_hf_folder
from addnorm.convert.preprocessing import (
    FILE,
    NESTED,
    Pictures,
    Samples,
    Sound,
    pictures_of,
    preprocessing_of,
)
from addnorm.data import (
    AudioConfig,
    Corpus,
    DatasetConfig,
    ImageFilesConfig,
    ImagesConfig,
)
from addnorm.data.batches.batch import Loader, Loaders, inputs_of
from addnorm.data.batches.images import Normalised
from addnorm.data.example import PROPERTIES, has_signals
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
    DualEncoderConfig,
    DualEncoderModel,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    ModelConfig,
)
from addnorm.models.inputs import embedded
from addnorm.nn.context import Context
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig, check_halves
from addnorm.nn.functional import at_least_float32
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.runs.inference.decoding import check_decodes, later, quoted
from addnorm.runs.inference.predictions import predicted
from addnorm.runs.inference.results import Classified
from addnorm.runs.inference.sentence_vectors import check_compared, pooled
from addnorm.runs.inference.speech import Transcriber
from addnorm.runs.options import Pooling, SpeechOptions
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.classification import Classification
from addnorm.tasks.registry import wrong_task

T = TypeVar("T")


@torch.inference_mode()
def classify_files(
    run: TrainedModel,
    files: Sequence[Path],
    *,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, Classified]]:
    """Yield the class of each image or clip, in the order of the files.

    `skipped` takes the `InputError` of a file that cannot be read, which is then left out; by
    default it raises the error.
    """
    if not isinstance(run.task_value, Classification):
        raise wrong_task(run, "has no classes")
    read = _reader(run)
    for group in _groups(read, files, batch_size, skipped):
        yield from zip([file for file, _ in group], _classified(run, group), strict=True)


@torch.inference_mode()
def transcribe_files(
    run: TrainedModel,
    files: Sequence[Path],
    decoding: DecodingConfig,
    *,
    speech: SpeechOptions | None = None,
    max_new_tokens: int | None = None,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, list[Generated]]]:
    """Yield the texts of each image or clip, best first, in the order of the files.

    Raises `InputError` as `classify_files` does, and for options of `speech` where the model is not
    of the Whisper family.
    """
    given = {name: value for name, value in (speech or {}).items() if value is not None}
    model = run.model
    if isinstance(model, EncoderDecoderModel) and run.hears and _is_foreign(run):
        yield from _heard(run, files, decoding, speech or {}, max_new_tokens, skipped, batch_size)
        return
    if given:
        raise InputError(
            f"{run.name}: only Whisper and its relatives take {quoted(given)}: leave it out"
        )
    if not isinstance(model, EncoderDecoderModel):
        check_decodes(run, [] if max_new_tokens is None else ["max_new_tokens"])
        yield from _read_off(run, files, skipped, batch_size)
        return
    target = run.tokenizers.target
    read, medium = _reader(run), run.medium
    assert medium is not None
    writer = Translation(model, target.bos_id, never=target.never_ids)
    done = 0
    for group in _groups(read, files, batch_size, skipped):
        results = transcribe(
            Transcription(writer, [signal for _, signal in group], medium),
            later(decoding, done),
            max_new_tokens=max_new_tokens,
            eos_id=target.eos_ids,
            text_decoder=TextDecoder(target),
        )
        done += len(group)
        for (file, _), best in zip(group, results, strict=True):
            yield file, best


def _read_off(
    run: TrainedModel,
    files: Sequence[Path],
    skipped: Callable[[InputError], None],
    batch_size: int,
) -> Iterator[tuple[Path, list[Generated]]]:
    """Yield the texts that an encoder's outputs spell, without a decoder (CTC)."""
    kinds = (kind for kind in run.task_value.examples if kind.writes and kind.medium == run.medium)
    kind = next(kinds, None)
    if kind is None or not run.task_value.writes_text:
        does = "writes no text" if run.reads_files else "reads no files of images or sound"
        raise wrong_task(run, does)
    for group in _groups(_reader(run), files, batch_size, skipped):
        examples = [kind(signal, "") for _, signal in group]  # pyright: ignore[reportCallIssue]
        for (file, _), text in zip(group, predicted(run, examples), strict=True):
            yield file, [text]


def _heard(
    run: TrainedModel,
    files: Sequence[Path],
    decoding: DecodingConfig,
    speech: SpeechOptions,
    max_new_tokens: int | None,
    skipped: Callable[[InputError], None],
    batch_size: int,
) -> Iterator[tuple[Path, list[Generated]]]:
    """Yield the texts of sounds of any length, transcribed by a Whisper model."""
    assert run.folder is not None
    reads = preprocessing_of(places_of(run.folder), run.recipe.model)
    assert isinstance(reads, Sound)
    transcriber = Transcriber.of(run, reads, decoding, speech, max_new_tokens)
    done = 0
    for group in _groups(
        lambda file: transcriber.read(_there(file), str(file)), files, batch_size, skipped
    ):
        texts = transcriber.texts([sound for _, sound in group], done)
        done += len(group)
        yield from zip([file for file, _ in group], texts, strict=True)


def check_read_alike(run: TrainedModel, corpus: Corpus | None = None) -> None:
    """Raise `InputError` for data that are read otherwise than the Hugging Face folder reads files.

    Pictures in data are scaled to [-1, 1], by a mean and a deviation of 0.5, and resized in one
    way. Clips in data are not padded to the seconds that Whisper reads, and their texts do not
    begin with language and task.
    """
    folder, data = run.folder, corpus or run.corpus or run.recipe.data
    if data is None or not run.reads_files or folder is None:
        return
    places = places_of(folder) if is_hf_folder(folder) else (folder,)
    if (file := find_file(places, FILE, NESTED)) is None:
        return
    theirs = preprocessing_of(places, run.recipe.model)
    if isinstance(theirs, Samples):
        if not _heard_alike(theirs, data):
            raise InputError(
                f"{file}: this model reads {theirs.sample_rate:,} samples a second"
                f"{', with mean zero and variance one' if theirs.standard else ' as they are'}, so "
                "it cannot be evaluated on these data: give data.form = 'waveform' and "
                f"data.sample_rate = {theirs.sample_rate}"
            )
        return
    if not isinstance(theirs, Pictures):
        raise InputError(
            f"{file}: this model reads {theirs.seconds} s, padded with silence, and its texts "
            "begin with a language and a task; data of sound have neither, so it cannot be "
            "evaluated on them; `run.transcribe(files)` reads them by the folder's settings"
        )
    half = (0.5,) * theirs.channels
    other = (theirs.mean, theirs.std) != (half, half) and not run.compares  # see `normalised`
    if other or abs(theirs.factor * 255 - 1) > 1e-6:
        raise InputError(
            f"{file}: pixels are scaled by image_mean = {list(theirs.mean)} and image_std "
            f"= {list(theirs.std)}, and data of pictures by 0.5 and 0.5, so this model cannot be "
            "evaluated on them; `run.classify_files(files)` reads them by the folder's settings"
        )
    if not _resized_alike(theirs, data):
        raise InputError(
            f"{file}: its settings resize pictures differently than data of pictures, so this "
            "model cannot be evaluated on them; `run.classify_files(files)` reads them by the "
            "folder's settings"
        )


def normalised(run: TrainedModel, loaders: Loaders) -> Loaders:
    """Normalise the images of validation and test by the folder's mean and deviation.

    Those of other models are refused instead (`check_read_alike`).
    """
    folder = run.folder
    if not run.compares or folder is None:
        return loaders
    places = places_of(folder) if is_hf_folder(folder) else (folder,)
    if find_file(places, FILE, NESTED) is None:
        return loaders
    theirs = preprocessing_of(places, run.recipe.model)
    assert isinstance(theirs, Pictures)

    def of(loader: Loader[Any] | None) -> Loader[Any] | None:
        return None if loader is None else Normalised(loader, theirs.mean, theirs.std)

    return replace(loaders, valid=of(loaders.valid), test=of(loaders.test))


def _heard_alike(theirs: Samples, data: object) -> bool:
    """Return whether clips are read as a wav2vec 2.0 folder reads them."""
    if not isinstance(data, AudioConfig):
        return isinstance(data, Corpus)
    rate = data.sample_rate == theirs.sample_rate
    return rate and data.form == "waveform" and theirs.standard


def _resized_alike(theirs: Pictures, data: object) -> bool:
    """Return whether images are resized as the folder resizes them; arrays count as right."""
    if isinstance(data, ImagesConfig | Corpus) and theirs.keeps_its_size:
        return True
    ours = pictures_of(data, theirs.size, theirs.channels)
    return ours is not None and (ours.resize, ours.crop, ours.resample) == (
        theirs.resize,
        theirs.crop,
        theirs.resample,
    )


def _is_foreign(run: TrainedModel) -> bool:
    """Return whether the run has no data, so that its Hugging Face folder defines preprocessing."""
    return run.recipe.data is None and run.folder is not None


def embed_files(
    run: TrainedModel,
    files: Sequence[Path],
    pooling: Pooling | None = None,
    *,
    skipped: Callable[[InputError], None] = refuse,
    batch_size: int = 64,
) -> Iterator[tuple[Path, Float[Tensor, " width"]]]:
    """Yield a vector for each image or clip, pooled from the encoder's final hidden states.

    Raises `InputError` as `classify_files` does.
    """
    read = _reader(run)
    for group in _groups(read, files, batch_size, skipped):
        vectors = _vectors(run, [signal for _, signal in group], pooling)
        yield from zip([file for file, _ in group], vectors, strict=True)


def embedded_files(
    run: TrainedModel, files: Sequence[str], pooling: Pooling | None, batch_size: int
) -> Float[Tensor, "files width"]:
    """Return the vectors of files as rows."""
    paths = [Path(file) for file in files]
    vectors = [vector for _, vector in embed_files(run, paths, pooling, batch_size=batch_size)]
    return torch.stack(vectors) if vectors else torch.zeros(0, run.recipe.model.d_model)


def transcribed(
    run: TrainedModel,
    files: Sequence[str],
    decoding: DecodingConfig,
    max_new_tokens: int | None,
    *,
    plain: bool,
) -> list[list[Generated]]:
    """Return the texts of each file.

    Raises `InputError` for a string in `stop` and for a compiled graph, which are not `plain`.
    """
    if not plain:
        raise InputError(
            f"{run.name}: the text of an image or a clip takes no stop and no compiled graph"
        )
    paths = [Path(file) for file in files]
    results = transcribe_files(run, paths, decoding, max_new_tokens=max_new_tokens)
    return [best for _, best in results]


def _groups(
    read: Callable[[Path], T],
    files: Sequence[Path],
    size: int,
    skipped: Callable[[InputError], None],
) -> Iterator[list[tuple[Path, T]]]:
    """Yield non-empty groups of files with their contents."""
    for start in range(0, len(files), size):
        group: list[tuple[Path, T]] = []
        for file in files[start : start + size]:
            try:
                group.append((file, read(file)))
            except InputError as error:
                skipped(error)
        if group:
            yield group


def _reader(run: TrainedModel) -> Callable[[Path], Tensor]:
    """Return the function that reads one file as the run's data were read."""
    data, model = run.recipe.data, run.recipe.model
    if not run.reads_files:
        raise _reads_no_files(run)
    if _is_foreign(run):
        assert run.folder is not None
        theirs = preprocessing_of(places_of(run.folder), model)
        return lambda file: theirs.read(_there(file), str(file))
    if isinstance(data, ImageFilesConfig) and data.strings is not None:
        height, width = data.image_size
        data = replace(data, image_size=(height, width * data.strings.longest), strings=None)
    if isinstance(data, AudioConfig | ImageFilesConfig | DatasetConfig):
        return lambda file: _checked(model, data.read(_there(file), str(file)), file)
    if not isinstance(data, ImagesConfig):
        raise _reads_no_files(run)
    assert isinstance(model, EncoderConfig | EncoderDecoderConfig | DualEncoderConfig)
    assert isinstance(model.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)
    height, width = (side * data.pool for side in model.input.size)
    channels = model.input.channels

    def read(file: Path) -> Tensor:
        pixels = read_image(_there(file), str(file), (height, width), channels)
        return data.arranged(pixels[None])[0]

    return read


def _reads_no_files(run: TrainedModel) -> InputError:
    """The error for a model that reads text or tables, or whose data were given in Python."""
    if run.medium is None or not has_signals(run.medium):
        return InputError(f"{run.name}: this model reads text, and no files of images or sound")
    if run.recipe.data is not None:
        return wrong_task(run, "reads no files of images or sound")
    return InputError(
        f"{run.name}: its {run.medium} were given in Python, which does not tell how files are "
        "read: train it on files"
    )


def _checked(model: ModelConfig, signal: Tensor, file: Path) -> Tensor:
    """Return the signal unchanged.

    Raises `InputError` for a picture that is too small for the model.
    """
    shape = getattr(model, "input", None)
    if isinstance(shape, ConvolutionalEmbeddingConfig):
        try:
            check_halves((signal.shape[-2], signal.shape[-1]), shape.n_layers)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
    return signal


def _there(file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"{file}: {'is not a file' if file.exists() else 'does not exist'}")
    return file


@torch.inference_mode()
def _vectors(
    run: TrainedModel, signals: Sequence[Tensor], pooling: Pooling | None
) -> list[Float[Tensor, " width"]]:
    model = run.model
    if isinstance(model, DualEncoderModel):
        check_compared(run, pooling)
        vectors = [model.image_vectors(inputs["inputs"]) for inputs in _inputs(run, signals)]
        return [at_least_float32(vector) for rows in vectors for vector in rows]
    return [
        vector
        for inputs in _inputs(run, signals)
        for vector in pooled(run, *_hidden(model, **inputs), pooling)
    ]


def _hidden(
    model: object, inputs: Tensor, valid: Tensor | None = None
) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
    """Return the final hidden states of an encoder, and their context."""
    if isinstance(model, EncoderDecoderModel):
        x, ctx = embedded(model.source_embed, inputs, valid)
        return model.encoder(x, ctx), ctx
    assert isinstance(model, EncoderModel)
    return model.hidden(inputs, valid)


def _inputs(run: TrainedModel, signals: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the model's inputs, in the order of the signals; images of several sizes one by one."""
    medium = run.medium
    assert medium is not None
    padded = PROPERTIES[medium].padded
    alone = not padded and len({signal.shape for signal in signals}) > 1
    for group in [[signal] for signal in signals] if alone else [signals]:
        ready = not padded and _is_foreign(run)
        inputs = {"inputs": torch.stack([*group])} if ready else inputs_of(medium, group)
        yield {name: tensor.to(run.device) for name, tensor in inputs.items()}


def _classified(run: TrainedModel, group: Sequence[tuple[Path, Tensor]]) -> Iterator[Classified]:
    for inputs in _inputs(run, [signal for _, signal in group]):
        for row in run.model(**inputs).softmax(-1).tolist():
            yield Classified.of(run.labels, row)
