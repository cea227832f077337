"""Verifying exports: a written model must reproduce the logits of the original."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.convert.weights.mapped import name_of
from addnorm.errors import InputError
from addnorm.models import (
    DecoderModel,
    DualEncoderModel,
    EncoderDecoderModel,
    EncoderModel,
    Model,
)
from addnorm.nn.audio import LogMelEmbedding
from addnorm.nn.convolutional_embedding import ConvolutionalEmbedding
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.patches import PatchEmbedding, SeriesEmbedding
from addnorm.nn.waveform import WaveformEmbedding

LENGTH = 16
"""The maximum number of tokens in the comparison of a model with its export."""

TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Tolerances relative to the largest logit; 0.001 for wider types."""


def sample_tokens(vocab_size: int, max_len: int | None = None) -> Int[Tensor, "1 seq"]:
    """A short deterministic sequence of ids from the whole vocabulary."""
    places = torch.arange(min(LENGTH, max_len or LENGTH))
    return ((places * places * 7919 + places * 104729 + 3) % vocab_size)[None]


def sample_inputs(model: Model) -> tuple[Tensor, ...]:
    """A small deterministic input of the kind that the model takes, on its device."""
    match model:
        case DecoderModel():
            inputs = (sample_tokens(_rows(model.embed), model.embed.position.max_len),)
        case EncoderModel():
            inputs = (_sample_input(model.embed),)
        case DualEncoderModel():
            inputs = (_sample_input(model.image.embed), _sample_input(model.embed))
        case EncoderDecoderModel():
            target = model.target_embed
            tokens = sample_tokens(_rows(target), target.position.max_len)
            inputs = (_sample_input(model.source_embed), tokens)
    device = next(model.parameters()).device
    return tuple(tensor.to(device) for tensor in inputs)


def _rows(embed: nn.Module) -> int:
    return embed.tokens.num_embeddings  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]


def _sample_input(embed: nn.Module) -> Tensor:
    match embed:
        case PatchEmbedding():
            rows, columns = embed.grid or (2, 2)
            shape = (1, embed.proj.in_channels, rows * embed.patch, columns * embed.patch)
        case ConvolutionalEmbedding():
            rows, columns = embed.grid or (2, 2)
            factor = 2 ** len(embed.convolutions)
            shape = (1, embed.channels, rows * factor, columns * factor)
        case LogMelEmbedding():
            most = 2 * (embed.position.max_len or LENGTH)  # two frames per position
            shape = (1, embed.conv1.in_channels, min(LENGTH, most))
        case WaveformEmbedding():
            shape = (1, 1, embed.least + 7)
        case SeriesEmbedding():
            shape = (1, embed.channels, min(LENGTH, embed.position.max_len or LENGTH))
        case _:
            max_len = embed.position.max_len if isinstance(embed, TokenEmbedding) else None
            return sample_tokens(_rows(embed), max_len)
    numbers = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32)
    return (numbers * 12.9898).sin().view(shape)


def model_logits(model: Model, inputs: tuple[Tensor, ...]) -> Float[Tensor, "*outputs"]:
    """The model's outputs at inference."""
    with torch.inference_mode(), _evaluating(model):
        return model(*inputs)


def check_types(form: str, model: Model) -> None:
    """Raise `InputError` if the model cannot run since its parameters have different dtypes.

    A model that runs with several, such as float16 with norms in float32, is accepted.
    """
    types = {name: parameter.dtype for name, parameter in model.named_parameters()}
    first = next(iter(types))
    other = next((name for name, dtype in types.items() if dtype != types[first]), None)
    if other is None:
        return
    try:
        model_logits(model, sample_inputs(model))
    except RuntimeError as error:
        dtype, first_dtype = name_of(types[other]), name_of(types[first])
        raise InputError(
            f"{form} cannot hold this model, which does not run: {other} is {dtype}, and {first} "
            f"is {first_dtype}. Give all one type, such as model.to(torch.{first_dtype})"
        ) from error


def check_logits(
    form: str,
    logits: Float[Tensor, "*read_back"],
    expected: Float[Tensor, "*outputs"],
    dtype: torch.dtype = torch.float32,
    *,
    tolerance: float | None = None,
) -> None:
    """Raise `InputError` unless both are equal up to the rounding error of `dtype`."""
    allowed = TOLERANCE.get(dtype, 1e-3) if tolerance is None else tolerance
    if logits.shape != expected.shape:
        shapes = f"of shape {tuple(logits.shape)}, not {tuple(expected.shape)}"
        raise InputError(f"{form} cannot hold this model: read back, it gives logits {shapes}")
    wide = expected.double().cpu()
    difference = float((logits.double().cpu() - wide).abs().max())
    largest = float(wide.abs().max())
    if not difference <= allowed * max(1.0, largest):
        raise InputError(
            f"{form} cannot hold this model: read back, its logits differ by {difference:.3g} "
            f"where the largest is {largest:.3g}; nothing was written"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)
