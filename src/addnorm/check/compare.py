"""Compare one cell with its plain definition, in float64, in every way of running it.

Where there is a choice, as of the side of the padding, each cell draws its own: what a cell is
asked depends on its name alone.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.check.batches import SIDES, VOCABULARY, Side, Text, drawn, flat, padded, pieces, row
from addnorm.check.definition import (
    Texts,
    decoder_logits,
    encoder_decoder_logits,
    encoder_logits,
)
from addnorm.check.definition.layers import Observed, Weights
from addnorm.check.matrix import Cell
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model

TOLERANCE = 1e-9
"""How far from the definition a number may be, relative to the largest, or to one."""

LENGTHS = (7, 4, 2)
SOURCE_LENGTHS = (3, 6, 5)
PREFIX = (3, 1, 2)
SEGMENTS = (slice(0, 3), slice(3, 5), slice(5, 7))

Comparison = tuple[str, Tensor, Tensor]
"""What is compared, what the model gives, and what it should be."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The result of one cell: the first comparison that fails, and by how much."""

    cell: str
    compared: int
    failed: str | None = None
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell's model with random weights, and the texts that it reads."""

    cell: Cell
    config: Any
    model: Model
    draw: random.Random
    texts: Sequence[Text]
    sources: Sequence[Text]

    @classmethod
    def of(cls, cell: Cell) -> "Case":
        """The case of a cell. Raises `ValueError` for one that is refused."""
        config = cell.config()
        draw = random.Random(zlib.crc32(cell.id.encode()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.randrange(2**32))
            model = config.build(VOCABULARY).double().eval()
            randomise(model)
        texts, sources = ([drawn(n, draw) for n in lens] for lens in (LENGTHS, SOURCE_LENGTHS))
        return cls(cell=cell, config=config, model=model, draw=draw, texts=texts, sources=sources)

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
        return self.model(*inputs)[valid]


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


def compare_cell(cell: Cell) -> CellResult:
    """Compare a cell with its definition. Raises `ValueError` for one that is refused."""
    return run_comparisons(cell, comparisons(Case.of(cell)))


def run_comparisons(cell: Cell, compared: Iterable[Comparison]) -> CellResult:
    """Run the comparisons of a cell until one fails, or cannot run at all."""
    n = 0
    try:
        for name, ours, expected in compared:
            n += 1
            if not (error := distance(ours, expected)) <= TOLERANCE:
                return CellResult(cell=cell.id, compared=n, failed=name, error=error)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        return CellResult(cell=cell.id, compared=n, failed=failure, error=float("inf"))
    return CellResult(cell=cell.id, compared=n)


def distance(ours: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number expected or to one."""
    if ours.shape != expected.shape:
        return float("inf")
    scale = max(1.0, expected.abs().max().item())
    return (ours - expected).abs().max().item() / scale


def comparisons(case: Case) -> Iterator[Comparison]:
    """Everything that must hold of this cell."""
    match case.model:
        case DecoderModel() as model:
            yield from _decoder(case, model)
        case EncoderModel() as model:
            yield from _encoder(case, model)
        case EncoderDecoderModel() as model:
            yield from _encoder_decoder(case, model)


def _decoder(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    config, texts, draw = case.config, case.texts, case.draw

    def defined(weights: Weights, observed: Observed | None = None) -> Tensor:
        return decoder_logits(config, weights, flat(texts), Texts.of(LENGTHS), observed)

    expected = defined(weights_of(model))
    yield from _forward_and_gradient(case, expected)
    yield from _training(case, defined)
    with torch.no_grad():
        yield from _rows(case, lambda i: model(row(texts[i])), expected)
        yield from _causal(case, lambda tokens, valid: model(tokens, valid))
        if _may_cache(case):
            tokens, valid = padded(texts, case.side(), draw)
            cache = model.new_cache()
            parts = [
                model(tokens[:, part], valid[:, : part.stop], cache=cache)
                for part in pieces(tokens.shape[1], draw)
            ]
            yield "cached", torch.cat(parts, dim=1)[valid], expected
        yield from _documents(case, model)
        if case.cell.mixer is None:
            yield from _prefixes(case, model)
    if case.cell.mixer is None and _may_cache(case):
        yield from _memory(case, model)


def _encoder(case: Case, model: EncoderModel) -> Iterator[Comparison]:
    texts = case.texts

    def defined(weights: Weights, observed: Observed | None = None) -> Tensor:
        return encoder_logits(case.config, weights, flat(texts), Texts.of(LENGTHS), observed)

    expected = defined(weights_of(model))
    yield from _forward_and_gradient(case, expected)
    yield from _training(case, defined)
    with torch.no_grad():
        yield from _rows(case, lambda i: model(row(texts[i])), expected)


def _encoder_decoder(case: Case, model: EncoderDecoderModel) -> Iterator[Comparison]:
    texts, sources, draw = case.texts, case.sources, case.draw
    source = flat(sources), Texts.of(SOURCE_LENGTHS)
    target = flat(texts), Texts.of(LENGTHS)

    def defined(weights: Weights, observed: Observed | None = None) -> Tensor:
        return encoder_decoder_logits(case.config, weights, source, target, observed)

    expected = defined(weights_of(model))
    yield from _forward_and_gradient(case, expected)
    yield from _training(case, defined)
    with torch.no_grad():
        yield from _rows(case, lambda i: model(row(sources[i]), row(texts[i])), expected)
        read, read_valid = padded(sources, case.side(), draw)
        yield from _causal(case, lambda tokens, valid: model(read, tokens, read_valid, valid))
        if _may_cache(case):
            tokens, valid = padded(texts, case.side(), draw)
            memory, cache = model.encode(read, read_valid), model.new_cache()
            parts = [
                model.decode(tokens[:, part], memory, read_valid, valid[:, : part.stop], cache)
                for part in pieces(tokens.shape[1], draw)
            ]
            yield "cached", torch.cat(parts, dim=1)[valid], expected


def _forward_and_gradient(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Logits, and the gradient of a random projection of them in all parameters."""
    ours = case.run("right")
    yield "logits", ours, expected
    yield "gradient", *gradients(case.model, ours, expected)


def _training(case: Case, defined: Callable[[Weights, Observed], Tensor]) -> Iterator[Comparison]:
    """With batch norm: in training batch-mates matter, padding does not, and statistics move."""
    model = case.model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not before:
        return
    model.train()
    observed: Observed = {}
    ours, expected = case.run(case.side()), defined(weights_of(model) | before, observed)
    yield "logits in training", ours, expected
    yield "gradient in training", *gradients(model, ours, expected)
    yield "running statistics", *_moved(model, before, observed)
    model.load_state_dict(before, strict=False)
    model.eval()


def _moved(
    model: nn.Module, before: dict[str, Tensor], observed: Observed
) -> tuple[Tensor, Tensor]:
    """The running statistics of all batch norms, and where a momentum of 0.1 takes them."""
    ours, expected = list[Tensor](), list[Tensor]()
    after = dict(model.named_buffers())
    for mean in (name for name in before if name.endswith("running_mean")):
        names = mean, mean.replace("running_mean", "running_var")
        for name, new in zip(names, observed[before[mean]], strict=True):
            ours.append(after[name])
            expected.append(0.9 * before[name] + 0.1 * new)
    return torch.cat(ours), torch.cat(expected)


def _rows(case: Case, alone: Callable[[int], Tensor], expected: Tensor) -> Iterator[Comparison]:
    """Padding on the other side, and a text without batch-mates and padding."""
    yield "left padding", case.run("left"), expected
    i = case.draw.randrange(len(LENGTHS))
    yield "alone", alone(i)[0], expected.split(LENGTHS)[i]


def _causal(case: Case, run: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Comparison]:
    """Another token at `t` changes nothing before it."""
    tokens, valid = padded(case.texts, "right", case.draw)
    t = case.draw.randrange(1, max(LENGTHS))
    other = tokens.clone()
    other[:, t] = (tokens[:, t] + case.draw.randrange(1, VOCABULARY)) % VOCABULARY
    earlier = valid[:, :t]
    yield "causality", run(other, valid)[:, :t][earlier], run(tokens, valid)[:, :t][earlier]


def _may_cache(case: Case) -> bool:
    """Whether what a cache holds stays as it is whatever is read later.

    Dynamic scaling says itself that past its original length it does not.
    """
    scaling = getattr(case.config.position, "scaling", None)
    return scaling is None or scaling.kind != "dynamic"


def _documents(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Documents packed in one row: each is a text of its own."""
    first, second, third = case.texts
    tokens, valid = padded([[*second, *third], first], case.side(), case.draw)
    segments = torch.full_like(tokens, -1)
    segments[valid] = torch.tensor([0] * len(second) + [1] * len(third) + [0] * len(first))
    ids, texts = flat([second, third, first]), Texts.of([len(second), len(third), len(first)])
    expected = decoder_logits(case.config, weights_of(model), ids, texts)
    yield "documents", model(tokens, valid, segments)[valid], expected


def _prefixes(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Prefix-LM: the first tokens of a row are seen from everywhere."""
    texts = Texts.of(LENGTHS, PREFIX)
    expected = decoder_logits(case.config, weights_of(model), flat(case.texts), texts)
    tokens, valid = padded(case.texts, case.side(), case.draw)
    yield "prefix", model(tokens, valid, prefix=torch.tensor(PREFIX))[valid], expected


def _memory(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """A text read in segments, each seeing the memory of those before, is the text read at once.

    No gradient flows into the memory. One shorter than what was read serves schemes that know
    offsets alone.
    """
    text = case.texts[0]
    absolute = case.config.position.kind in ("sinusoidal", "learned")
    absolute |= case.config.attention.pattern.kind == "blocks"
    size = len(text) if absolute else case.draw.choice((1, 2, 4, len(text)))
    texts = Texts.of([len(text)]).in_segments(SEGMENTS, size)
    expected = decoder_logits(case.config, weights_of(model), text, texts)
    memory = model.new_memory(size)
    parts = [model(row(text[part]), cache=memory)[0] for part in SEGMENTS]
    yield f"memory of {size}", torch.cat(parts), expected
    last = gradients(model, parts[-1], expected[SEGMENTS[-1]])
    yield f"gradient with a memory of {size}", *last


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and buffers by all their names, shared ones more than once."""
    parameters = model.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(model.named_buffers(remove_duplicate=False))}


def gradients(
    model: nn.Module, ours: Tensor, expected: Tensor
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Both gradients of one random projection, all parameters in one vector."""
    parameters = list(model.parameters())
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(expected.shape, generator=draw, dtype=torch.float64)

    def of(y: Tensor) -> Tensor:
        found = torch.autograd.grad(
            (y * direction).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        return torch.cat([gradient.flatten() for gradient in found])

    return of(ours), of(expected)
