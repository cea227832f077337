"""A test case: a cell's model with random weights, its inputs, and the expected outputs.

Choices such as the padding side are drawn at random for each cell, seeded by its name.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.checking.definition import (
    Texts,
    decoder_logits,
    encoder_decoder_logits,
    encoder_logits,
)
from addnorm.checking.definition.layers import Weights
from addnorm.checking.definition.norms import Observed
from addnorm.checking.matrix import Cell
from addnorm.models import DecoderModel, EncoderConfig, EncoderDecoderModel, Model
from addnorm.nn.positions.scaling import LengthScaling

VOCABULARY = 11

Side = Literal["right", "left", "between"]
SIDES: tuple[Side, ...] = ("right", "left", "between")
"""The position of padding: after a text, before it, or anywhere between its tokens."""

Text = list[int]
Tokens = Int[Tensor, "batch seq"]


def padded(
    texts: Sequence[Text], side: Side, draw: random.Random
) -> tuple[Tokens, Bool[Tensor, "batch seq"]]:
    """Return a batch padded with random tokens, and the mask of real tokens."""
    width = max(len(text) for text in texts)
    tokens = torch.tensor([drawn(width, draw) for _ in texts])
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    for row, text in enumerate(texts):
        places = {
            "right": range(len(text)),
            "left": range(width - len(text), width),
            "between": sorted(draw.sample(range(width), len(text))),
        }
        valid[row, list(places[side])] = True
    tokens[valid] = torch.tensor(flat(texts))
    return tokens, valid


def row(text: Sequence[int]) -> Tokens:
    """Return a batch of one text."""
    return torch.tensor([list(text)])


def flat(texts: Sequence[Text]) -> Text:
    """Concatenate the tokens of all texts, in the same order as `batch[valid]`."""
    return [token for text in texts for token in text]


def drawn(n: int, draw: random.Random) -> Text:
    """Draw `n` random tokens."""
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def pieces(n: int, draw: random.Random) -> list[slice]:
    """Split `n` tokens into a random number of non-empty chunks."""
    cuts = sorted(draw.sample(range(1, n), draw.randrange(1, n)))
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


LENGTHS = (7, 4, 2)
SOURCE_LENGTHS = (3, 6, 5)
N_LABELS = 5

SHORT = 16
"""A text of more tokens needs a model with more positions."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell's model with random weights, and its input texts.

    If it is not `defined` (a custom part without a reference definition), the model is compared
    with itself, on each text alone.
    """

    cell: Cell
    config: Any
    model: Model
    draw: random.Random
    texts: Sequence[Text]
    sources: Sequence[Text]
    defined: bool = True

    @classmethod
    def of(
        cls,
        cell: Cell,
        lengths: Sequence[int] = LENGTHS,
        source_lengths: Sequence[int] = SOURCE_LENGTHS,
        *,
        defined: bool = True,
    ) -> "Case":
        """Build the case of a cell. Raises `ValueError` for an invalid cell."""
        config = cell.config(more=max(*lengths, *source_lengths, SHORT) - SHORT)
        draw = random.Random(zlib.crc32(cell.id.encode()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.randrange(2**32))
            model = build(config).double().eval()
            randomise(model)
        texts, sources = ([drawn(n, draw) for n in lens] for lens in (lengths, source_lengths))
        return cls(
            cell=cell,
            config=config,
            model=model,
            draw=draw,
            texts=texts,
            sources=sources,
            defined=defined,
        )

    @property
    def lengths(self) -> list[int]:
        """The lengths of the texts."""
        return [len(text) for text in self.texts]

    def side(self) -> Side:
        """A random padding side."""
        return self.draw.choice(SIDES)

    def batch(self, side: Side) -> tuple[tuple[Tensor, ...], Tensor]:
        """The model inputs for all texts, and the mask of outputs at real tokens."""
        tokens, valid = padded(self.texts, side, self.draw)
        if not isinstance(self.model, EncoderDecoderModel):
            return (tokens, valid), valid
        source, source_valid = padded(self.sources, side, self.draw)
        return (source, tokens, source_valid, valid), valid

    def run(self, side: Side) -> Tensor:
        """The model's logits of all texts, concatenated."""
        inputs, valid = self.batch(side)
        return real(self.model(*inputs), valid)

    def alone(self, i: int) -> Tensor:
        """The model's logits of one text, without batch-mates or padding."""
        text = row(self.texts[i])
        if isinstance(self.model, EncoderDecoderModel):
            return self.model(row(self.sources[i]), text)[0]
        outputs = self.model(text)
        return outputs[0] if outputs.ndim == 3 else outputs

    def expected(self) -> Tensor:
        """The expected logits of all texts, by the definition or from each text alone."""
        if self.defined:
            return self.definition(weights_of(self.model))
        return torch.cat([self.alone(i) for i in range(len(self.texts))])

    def definition(self, weights: Weights, observed: Observed | None = None) -> Tensor:
        """The logits of all texts by the reference definition."""
        target = flat(self.texts), Texts.of(self.lengths)
        if isinstance(self.model, EncoderDecoderModel):
            source = flat(self.sources), Texts.of([len(text) for text in self.sources])
            return encoder_decoder_logits(self.config, weights, source, target, observed)
        plain = decoder_logits if isinstance(self.model, DecoderModel) else encoder_logits
        return plain(self.config, weights, *target, observed)

    def split(self, outputs: Tensor) -> list[Tensor]:
        """Split concatenated outputs into those of each text."""
        if len(outputs) == len(self.texts) and len(outputs) != sum(self.lengths):
            return list(outputs.split(1))
        return list(outputs.split(self.lengths))

    def reading(self, texts: Sequence[Text]) -> "Case":
        """The same decoder model as a case with other texts."""
        return replace(self, texts=texts)

    def may_cache(self) -> bool:
        """Return whether cached states are independent of later tokens.

        They are not with scalings by the length of a text, past the original length.
        """
        layers = [layer for stack in self.config.stacks.values() for layer in stack]
        scalings = [getattr(layer.position, "scaling", None) for layer in layers]
        return not any(isinstance(scaling, LengthScaling) for scaling in scalings)


def build(config: Any) -> Model:
    """Build the model with this check's vocabulary."""
    if isinstance(config, EncoderConfig):
        return config.build(VOCABULARY, N_LABELS)
    return config.build(VOCABULARY)


def real(outputs: Tensor, valid: Tensor) -> Tensor:
    """The outputs at real tokens, concatenated; all outputs of a classifier of whole texts."""
    return outputs[valid] if outputs.ndim == 3 else outputs


def randomise(model: nn.Module) -> None:
    """Randomise every weight and running statistic, so that no gain is one and no bias zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.normal_(mean=0.5, std=0.5)
            else:  # small enough not to saturate any softmax
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            if name.endswith("correction"):
                buffer.normal_(std=0.2)
            if name.endswith("running_var"):
                buffer.uniform_(8.0, 32.0)  # smaller values would make activations explode


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and buffers by name; shared ones appear under each name."""
    parameters = model.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(model.named_buffers(remove_duplicate=False))}


def gradients(
    model: nn.Module, ours: Tensor, expected: Tensor
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The gradients of one random projection of both outputs, each as a single vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(expected.shape, generator=draw, dtype=torch.float64)

    def of(y: Tensor) -> Tensor:
        of_parameters = torch.autograd.grad(
            (y * direction).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        return torch.cat([gradient.flatten() for gradient in of_parameters])

    return of(ours), of(expected)
