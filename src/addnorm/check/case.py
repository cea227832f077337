"""A case: a cell's model with random weights, the texts that it reads, and what is expected of it.

Where there is a choice, as of the side of the padding, each cell draws its own: what a cell is
asked depends on its name alone.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.check.batches import SIDES, VOCABULARY, Side, Text, drawn, flat, padded, row
from addnorm.check.definition import (
    Texts,
    decoder_logits,
    encoder_decoder_logits,
    encoder_logits,
)
from addnorm.check.definition.layers import Weights
from addnorm.check.definition.norms import Observed
from addnorm.check.matrix import Cell
from addnorm.models import DecoderModel, EncoderConfig, EncoderDecoderModel, Model

LENGTHS = (7, 4, 2)
SOURCE_LENGTHS = (3, 6, 5)
N_LABELS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell's model with random weights, and the texts that it reads.

    What is not `defined` (a part of someone's own without a definition) is compared with itself:
    each text alone is what is expected.
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
        """The case of a cell. Raises `ValueError` for one that is refused."""
        config = cell.config()
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
        """One side for the padding."""
        return self.draw.choice(SIDES)

    def batch(self, side: Side) -> tuple[tuple[Tensor, ...], Tensor]:
        """All texts, as the model takes them, and which of its outputs count."""
        tokens, valid = padded(self.texts, side, self.draw)
        if not isinstance(self.model, EncoderDecoderModel):
            return (tokens, valid), valid
        read, read_valid = padded(self.sources, side, self.draw)
        return (read, tokens, read_valid, valid), valid

    def run(self, side: Side) -> Tensor:
        """The model's logits of all texts, one after another."""
        inputs, valid = self.batch(side)
        return real(self.model(*inputs), valid)

    def alone(self, i: int) -> Tensor:
        """The model's logits of one text, read without batch-mates and padding."""
        text = row(self.texts[i])
        if isinstance(self.model, EncoderDecoderModel):
            return self.model(row(self.sources[i]), text)[0]
        outputs = self.model(text)
        return outputs[0] if outputs.ndim == 3 else outputs

    def expected(self) -> Tensor:
        """The logits of all texts that the definition gives, or each alone."""
        if self.defined:
            return self.definition(weights_of(self.model))
        return torch.cat([self.alone(i) for i in range(len(self.texts))])

    def definition(self, weights: Weights, observed: Observed | None = None) -> Tensor:
        """The logits of all texts by the definition."""
        target = flat(self.texts), Texts.of(self.lengths)
        if isinstance(self.model, EncoderDecoderModel):
            source = flat(self.sources), Texts.of([len(text) for text in self.sources])
            return encoder_decoder_logits(self.config, weights, source, target, observed)
        plain = decoder_logits if isinstance(self.model, DecoderModel) else encoder_logits
        return plain(self.config, weights, *target, observed)

    def split(self, outputs: Tensor) -> list[Tensor]:
        """The outputs of each text, of one after another."""
        if len(outputs) == len(self.texts) and len(outputs) != sum(self.lengths):
            return list(outputs.split(1))
        return list(outputs.split(self.lengths))

    def reading(self, texts: Sequence[Text]) -> "Case":
        """The same model, on other texts; of a decoder."""
        return replace(self, texts=texts)

    def may_cache(self) -> bool:
        """Whether what a cache holds stays as it is whatever is read later.

        Dynamic scaling says itself that past its original length it does not.
        """
        layers = [layer.position for layer in self.config.layer_pattern]
        positions = [self.config.position, *layers]
        scalings = [getattr(position, "scaling", None) for position in positions]
        return not any(getattr(scaling, "kind", None) == "dynamic" for scaling in scalings)


def build(config: Any) -> Model:
    """The model, for the vocabulary of this check."""
    if isinstance(config, EncoderConfig):
        return config.build(VOCABULARY, N_LABELS)
    return config.build(VOCABULARY)


def real(outputs: Tensor, valid: Tensor) -> Tensor:
    """The outputs at real tokens, one text after another; all, where they judge whole texts."""
    return outputs[valid] if outputs.ndim == 3 else outputs


def randomise(model: nn.Module) -> None:
    """Draw every weight and every running statistic anew: no gain is one and no bias zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.normal_(mean=0.5, std=0.5)
            else:  # narrow enough that no depth saturates a softmax
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            if name.endswith("running_var"):
                buffer.uniform_(2.0, 8.0)  # narrower, and squares of squares would run away


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and buffers by all their names, shared ones more than once."""
    parameters = model.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(model.named_buffers(remove_duplicate=False))}


def gradients(
    model: nn.Module, ours: Tensor, expected: Tensor
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Both gradients of one random projection, all parameters in one vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(expected.shape, generator=draw, dtype=torch.float64)

    def of(y: Tensor) -> Tensor:
        found = torch.autograd.grad(
            (y * direction).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        return torch.cat([gradient.flatten() for gradient in found])

    return of(ours), of(expected)
