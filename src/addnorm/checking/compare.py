"""Compare one cell with its reference definition in float64, for every way of running it."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from addnorm.checking.another_device import another_device, runs_on_another_device
from addnorm.checking.cached import Reader, cached, causality, selected_memory
from addnorm.checking.case import Case, flat, gradients, padded, real, row, weights_of
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.definition import Texts, decoder_logits
from addnorm.checking.definition.norms import Observed
from addnorm.checking.long_texts import long_texts, reads_long_texts
from addnorm.checking.matrix import Cell
from addnorm.checking.narrow_types import narrow_types
from addnorm.checking.served import served
from addnorm.checking.served_in_batches import served_in_batches
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderModel
from addnorm.nn.attention import (
    AttentionConfig,
    CrossLayerAttention,
    FullPatternConfig,
    SelfAttention,
    WindowPatternConfig,
)
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.kernels import shared
from addnorm.nn.attention.multihead import Attending
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)

PREFIX = (3, 1, 2)
SEGMENTS = (slice(0, 3), slice(3, 5), slice(5, 7))

RELATIVE_POSITIONS = (
    ALiBiConfig,
    KERPLEConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
"""The position encodings that depend on the relative offset only."""

RELATIVE_PATTERNS = (FullPatternConfig, WindowPatternConfig)
"""The patterns that depend on the relative offset only."""


def compare_cell(cell: Cell) -> CellResult:
    """Compare a cell with its definition. Raises `ValueError` for an invalid cell."""
    return run_comparisons(cell.id, every_comparison(cell))


def every_comparison(cell: Cell, *, defined: bool = True) -> Iterator[Comparison]:
    """Yield all comparisons: in float64, in lower precision, and for some cells with long texts."""
    case = Case.of(cell, defined=defined)
    expected = case.expected()
    yield from comparisons(case, expected)
    yield from narrow_types(case, expected.detach())
    if runs_on_another_device(cell):
        yield from another_device(case)
    if reads_long_texts(cell):
        yield from long_texts(cell, defined=defined)


def comparisons(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Yield every comparison in float64."""
    model = case.model
    ours = case.run("right")
    yield Comparison("logits", ours, expected)
    yield Comparison("gradient", *gradients(model, ours, expected))
    if case.defined:
        yield from _training(case)
    with torch.no_grad():
        yield from _rows(case, expected)
        if isinstance(model, DecoderModel | EncoderDecoderModel):
            yield causality(case, decoding(case))
            if case.may_cache():
                yield from cached(case, expected)
                yield from served(case, expected, "gathered")
                yield from served_in_batches(case, expected, in_place=False)
        if isinstance(model, DecoderModel):
            yield from _documents(case, model)
    yield from shown_weights(case)
    if isinstance(model, DecoderModel):
        kinds = SelfAttention | CrossLayerAttention
        attends = [isinstance(mixer, kinds) for mixer in model.stack.mixers]
        if all(attends) and case.defined:
            with torch.no_grad():
                yield from _prefixes(case, model)
        reads = any(read is not None for read in model.stack.read_layers)
        if any(attends) and case.may_cache() and not reads:
            yield from _memories(case, model, defined=all(attends) and case.defined)


def decoding(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from tokens and their padding mask to logits."""
    model = case.model
    if isinstance(model, EncoderDecoderModel):
        source, source_valid = padded(case.sources, case.side(), case.draw)
        return lambda tokens, valid: model(source, tokens, source_valid, valid)
    return lambda tokens, valid: model(tokens, valid)


def _memories(case: Case, model: DecoderModel, *, defined: bool) -> Iterator[Comparison]:
    with torch.no_grad():
        yield from selected_memory(case, model)
    if defined:
        yield from _memory(case, model)


def _training(case: Case) -> Iterator[Comparison]:
    """Compare batch norm in training: logits, gradients and updated running statistics."""
    model = case.model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not any(name.endswith("running_mean") for name in before):
        return
    model.train()
    observed: Observed = {}
    ours, expected = case.run(case.side()), case.definition(weights_of(model) | before, observed)
    yield Comparison("logits in training", ours, expected)
    yield Comparison("gradient in training", *gradients(model, ours, expected))
    yield Comparison("running statistics", *_moved(model, before, observed))
    model.load_state_dict(before, strict=False)
    model.eval()


def _moved(
    model: nn.Module, before: dict[str, Tensor], observed: Observed
) -> tuple[Tensor, Tensor]:
    """Return the running statistics of all batch norms, and their expected values."""
    ours, expected = list[Tensor](), list[Tensor]()
    after = dict(model.named_buffers())
    for mean in (name for name in before if name.endswith("running_mean")):
        names = mean, mean.replace("running_mean", "running_var")
        *seen, momentum = observed[before[mean]]
        for name, new in zip(names, seen, strict=True):
            ours.append(after[name])
            expected.append((1 - momentum) * before[name] + momentum * new)
    return torch.cat(ours), torch.cat(expected)


def _rows(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Compare with padding on the other side, and with a single text without padding."""
    yield Comparison("left padding", case.run("left"), expected)
    i = case.draw.randrange(len(case.texts))
    yield Comparison("alone", case.alone(i), case.split(expected)[i])


def _documents(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Compare packed documents: those in one row must be independent."""
    first, second, third = case.texts
    tokens, valid = padded([[*second, *third], first], case.side(), case.draw)
    segments = torch.full_like(tokens, -1)
    segments[valid] = torch.tensor([0] * len(second) + [1] * len(third) + [0] * len(first))
    expected = case.reading([second, third, first]).expected()
    yield Comparison("documents", real(model(tokens, valid, segments), valid), expected)


def _prefixes(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Compare Prefix-LM masks: every token may attend to the first tokens of its row."""
    texts = Texts.of(case.lengths, PREFIX)
    expected = decoder_logits(case.config, weights_of(model), flat(case.texts), texts)
    tokens, valid = padded(case.texts, case.side(), case.draw)
    ours = model(tokens, valid, prefix=torch.tensor(PREFIX))[valid]
    yield Comparison("prefix", ours, expected)


def _memory(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Compare segment memory: a text in segments gives the same result as at once.

    No gradient flows into the memory. A memory shorter than the past is tested only with relative
    positions.
    """
    text = case.texts[0]
    size = len(text) if _is_absolute(case.config) else case.draw.choice((1, 2, 4, len(text)))
    texts = Texts.of([len(text)]).in_segments(SEGMENTS, size)
    expected = decoder_logits(case.config, weights_of(model), text, texts)
    memory = model.new_memory(size)
    parts = [model(row(text[part]), cache=memory)[0] for part in SEGMENTS]
    yield Comparison(f"memory of {size}", torch.cat(parts), expected)
    last = gradients(model, parts[-1], expected[SEGMENTS[-1]])
    yield Comparison(f"gradient with a memory of {size}", *last)


def _is_absolute(config: DecoderConfig) -> bool:
    """Return whether any part depends on absolute positions, not only on offsets."""
    layers = config.stacks["stack"]
    positions = [config.position, *(layer.position for layer in layers)]
    attentions = [cast(AttentionConfig, layer.attention) for layer in layers]
    relative = all(isinstance(position, RELATIVE_POSITIONS) for position in positions)
    # A norm of rotated heads sees the angles themselves.
    normed = any(attention.qk_norm_after == "rotation" for attention in attentions)
    masked = all(isinstance(attention.pattern, RELATIVE_PATTERNS) for attention in attentions)
    return normed or not (relative and masked)


Call = tuple[nn.Module, tuple[Any, ...], Tensor]
"""A core, its arguments and its output."""


@runtime_checkable
class Combines(Protocol):
    """A core that does more than sum the values by its weights."""

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        """The output of the core, given its weights and the values."""
        ...


def shown_weights(case: Case) -> Iterator[Comparison]:
    """Compare each core's output with `core.weights(q, k, …) v`, in a batch and with a cache.

    The weights that a core shows must be those by which it mixes the values.
    """
    if not _cores(case.model):
        return
    calls: list[Call] = []
    with _recorded(case.model, calls):
        case.run(case.side())
        if isinstance(case.model, DecoderModel | EncoderDecoderModel) and case.may_cache():
            reader = Reader.of(case)
            half = reader.tokens.shape[1] // 2
            reader.read(slice(0, half))
            reader.read(slice(half, reader.tokens.shape[1]))
    for core, (q, k, v, *rest), mixed in calls:
        assert isinstance(core, HasWeights)
        weights = core.weights(q, k, *rest)
        combined = isinstance(core, Combines)
        expected = core.combine(weights, v) if combined else weights @ shared(v, q.shape[1])
        yield Comparison("the weights that attention shows", expected, mixed)


def _cores(model: nn.Module) -> list[nn.Module]:
    """Return the cores of a model that can return their weights."""
    cores = [module.core for module in model.modules() if isinstance(module, Attending)]
    return [core for core in cores if isinstance(core, HasWeights)]


@contextmanager
def _recorded(model: nn.Module, calls: list[Call]) -> Generator[None]:
    def note(core: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        calls.append((core, arguments, output))

    handles = [core.register_forward_hook(note) for core in _cores(model)]
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
