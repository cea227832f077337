"""A model cut into stages of consecutive layers; each pipeline process computes some of them.

Each process has the inputs of every batch, and so the context of its layers. What it receives from
the stage before are hidden states alone, as one flat vector, all residual streams of them; of an
encoder–decoder the memory, then the decoder's states.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel
from addnorm.nn.blocks import EmbeddedBlock, Stack
from addnorm.nn.context import Context
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.hyper_connections import HyperConnection
from addnorm.nn.masks import Full
from addnorm.training.parallel.pieces import Group


@dataclass(frozen=True)
class Stages:
    """The layers of each stage."""

    layers: tuple[int, ...]
    """The number of layers of each stack, in the order in which they compute."""
    ends: tuple[int, ...]
    """The number of layers up to the end of each stage."""

    @classmethod
    def equal(cls, layers: tuple[int, ...], total: int) -> "Stages":
        """Stages of equal size: of n layers, stage s of S has those from `n s / S` on."""
        n = sum(layers)
        return cls(layers, tuple(n * (stage + 1) // total for stage in range(total)))

    @property
    def total(self) -> int:
        """The number of stages."""
        return len(self.ends)

    def of(self, stage: int) -> list[range]:
        """The layers of each stack that a stage computes.

        They begin and end at 0 before the stack, and at its number of layers after it.
        """
        first, last = (0, *self.ends)[stage], self.ends[stage]
        begins = [0, *accumulate(self.layers)]
        return [
            range(*(min(max(place - begin, 0), count) for place in (first, last)))
            for begin, count in zip(begins, self.layers, strict=False)
        ]


@dataclass(frozen=True)
class Section:
    """A stack of a model, the embedding before it, and the name of the embedded argument."""

    embed: nn.Module
    stack: Stack
    argument: str

    def width(self) -> int:
        """The width of the embedded tokens; 0 for other kinds of input."""
        if not isinstance(self.embed, TokenEmbedding):
            return 0
        device = self.embed.tokens.weight.device
        tokens = torch.zeros(1, 1, dtype=torch.long, device=device)
        training = self.embed.training
        with torch.no_grad():
            x = self.embed.eval()(tokens, Context.over(tokens, Full()))
        self.embed.train(training)
        return x.shape[-1]

    @cached_property
    def streams(self) -> int:
        """The number of residual streams between two layers."""
        modules = self.stack.blocks.modules()
        return next((m.n for m in modules if isinstance(m, HyperConnection)), 1)

    def streams_after(self, layers: int) -> int:
        """The number of residual streams after some layers: one before and after the stack."""
        return self.streams if 0 < layers < len(self.stack.blocks) else 1


def staged_sections(model: nn.Module) -> list[Section]:
    """The sections of a model whose stages exchange only hidden states.

    Raises `InputError` for a model with a layer that needs more than these.
    """
    sections = sections_of(model)
    for section in sections:
        for i, read in enumerate(section.stack.read_layers):
            if read is not None:
                raise InputError(
                    f"parallel.pipeline: layer {i} reads the keys or values of layer {read}, and "
                    "stages hand on hidden states alone: leave pipeline out"
                )
        for i, block in enumerate(section.stack.blocks):
            if isinstance(block, EmbeddedBlock):
                raise InputError(
                    f"parallel.pipeline: layer {i} reads its own vectors of the tokens, and stages "
                    "hand on hidden states alone: leave pipeline out"
                )
    return sections


def sections_of(model: nn.Module) -> list[Section]:
    """The sections of a model, in the order of computation."""
    match model:
        case DecoderModel():
            return [Section(model.embed, model.stack, "tokens")]  # pyright: ignore[reportArgumentType]
        case EncoderModel():
            return [Section(model.embed, model.stack, "inputs")]
        case EncoderDecoderModel():
            return [
                Section(model.source_embed, model.encoder, "source"),
                Section(model.target_embed, model.decoder, "target"),  # pyright: ignore[reportArgumentType]
            ]
        case _:
            raise InputError(
                f"parallel.pipeline: {type(model).__name__} has no stacks of blocks, which stages "
                "are made of: leave pipeline out"
            )


def stages_of(model: nn.Module, total: int) -> Stages:
    """Stages with equally many layers.

    Raises `InputError` if there are fewer layers than stages.
    """
    return Stages.equal(layers_of(model, total), total)


def layers_of(model: nn.Module, total: int) -> tuple[int, ...]:
    """The number of layers of each stack. Raises `InputError` if there are fewer than stages."""
    layers = tuple(len(section.stack.blocks) for section in staged_sections(model))
    if sum(layers) < total:
        raise InputError(
            f"parallel.pipeline: {total} stages need as many layers, and the model has "
            f"{sum(layers)}: give fewer"
        )
    return layers


def holders(model: nn.Module, total: int, processes: int) -> dict[str, tuple[int, ...]]:
    """The pipeline processes that hold each parameter, since their stages compute with it.

    Stage s is computed by process s modulo their number. A single number, which has no empty part,
    is held by all; what no stage computes with, by the first.
    """
    stages = stages_of(model, total)
    held = [set[nn.Parameter]() for _ in range(processes)]
    for stage in range(stages.total):
        for module in _modules_of(model, stages, stage):
            held[stage % processes].update(module.parameters())
    every = tuple(range(processes))
    return {
        name: tuple(i for i in every if parameter in held[i] or not parameter.ndim) or (0,)
        for name, parameter in model.named_parameters()
    }


def _modules_of(model: nn.Module, stages: Stages, stage: int) -> Iterator[nn.Module]:
    """Yield the modules with which a stage computes."""
    inside = set[nn.Module]()
    sections = sections_of(model)
    for section, layers in zip(sections, stages.of(stage), strict=True):
        inside |= {section.embed, section.stack}
        if starts_stack(layers) or not isinstance(section.embed, TokenEmbedding):
            yield section.embed
        yield from (block for i, block in enumerate(section.stack.blocks) if i in layers)
        if ends_stack(layers, len(section.stack.blocks)):
            yield section.stack.norm
    if stage == stages.total - 1:
        yield from (child for child in model.children() if child not in inside)


def starts_stack(layers: range) -> bool:
    """Whether these layers are the first of their stack."""
    return layers.start == 0 < layers.stop


def ends_stack(layers: range, n: int) -> bool:
    """Whether these layers are the last of their stack of n layers."""
    return layers.start < n == layers.stop


class StageBlocks(nn.ModuleList):
    """All blocks of a stack, of which a forward pass runs only the `present` ones."""

    present: Sequence[int] = ()

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[i] for i in self.present])


class StagedModel:
    """A model whose forward pass computes one stage (see `at`).

    Its embeddings return what was received where they belong to an earlier stage, its stacks run
    the blocks of the stage, and what they return is collected to be handed on.
    """

    def __init__(
        self,
        model: nn.Module,
        total: int,
        group: Group,
        own_length: Callable[[int], int] = int,
    ) -> None:
        self.model = model
        self.own_length = own_length
        """The number of positions that this process computes, of so many."""
        self.stages = stages_of(model, total)
        self.own = range(group.rank, total, group.size)
        """The stages that this process computes."""
        self.sections = sections_of(model)
        self.widths = [section.width() for section in self.sections]
        self._stage = self.own[0]
        self._received = torch.empty(0)
        self._outputs: list[Tensor] = []
        self._shapes: dict[torch.Size, torch.Size] = {}
        self._forwards = [section.embed.forward for section in self.sections]
        for i, section in enumerate(self.sections):
            vars(section.embed)["forward"] = self._embedding(i)
            vars(section.stack.norm)["forward"] = self._norm(i, section.stack.norm.forward)
            section.stack.blocks = StageBlocks(section.stack.blocks)
        self._show([self.stages.of(stage) for stage in self.own])

    @property
    def is_last(self) -> bool:
        """Whether the present stage is the last one, which computes the loss."""
        return self._stage == self.stages.total - 1

    def length(self, inputs: Mapping[str, Tensor]) -> int:
        """The largest number of values that a stage sends to the next."""
        return sum(
            section.streams * prod(self._shape(i, inputs[section.argument]))
            for i, section in enumerate(self.sections)
        )

    def _shape(self, i: int, inputs: Tensor) -> Sequence[int]:
        """The shape of the embedded inputs in this process's layers."""
        if self.widths[i]:
            return self._own_shape((*inputs.shape, self.widths[i]))
        if inputs.shape not in self._shapes:
            self._shapes[inputs.shape] = self._in_context(i, inputs)[0].shape
        return self._own_shape(self._shapes[inputs.shape])

    def _own_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of this process's part of the hidden states."""
        rows, positions, width = shape
        return rows, self.own_length(positions), width

    def _in_context(self, i: int, *inputs: Any) -> tuple[Tensor, Context]:
        """The embedded inputs of another kind than tokens, without gradient, and their context."""
        with torch.no_grad(), torch.random.fork_rng([]):
            return self._forwards[i](*inputs)

    @contextmanager
    def at(self, stage: int, received: Tensor) -> Generator[None]:
        """In this context, a forward pass computes one stage from the received values."""
        self._stage, self._received = stage, received
        self._outputs.clear()
        self._show([self.stages.of(stage)])
        try:
            yield
        finally:
            self._show([self.stages.of(stage) for stage in self.own])

    def handed_on(self, length: int, dtype: torch.dtype) -> Tensor:
        """The present stage's output as a vector of this length."""
        layers = self.stages.of(self._stage)
        begun = [x for x, of_stack in zip(self._outputs, layers, strict=True) if of_stack.stop]
        flat = torch.cat([x.flatten().to(dtype) for x in begun])
        return F.pad(flat, (0, length - len(flat)))

    def _show(self, chosen: Sequence[Sequence[range]]) -> None:
        """Make the blocks of these stages the present ones in each stack."""
        for i, section in enumerate(self.sections):
            blocks = section.stack.blocks
            assert isinstance(blocks, StageBlocks)
            blocks.present = [layer for layers in chosen for layer in layers[i]]

    def _embedding(self, i: int) -> Callable[..., Any]:
        def embed(inputs: Tensor, *rest: Any) -> Any:
            layers = self.stages.of(self._stage)[i]
            if starts_stack(layers):
                return self._forwards[i](inputs, *rest)
            if self.widths[i]:
                ctx: Context = rest[0]
                return self._taken(i, layers, (len(inputs), ctx.within, self.widths[i]))
            x, ctx = self._in_context(i, inputs, *rest)
            return self._taken(i, layers, x.shape), ctx

        return embed

    def _taken(self, i: int, layers: range, shape: Sequence[int]) -> Tensor:
        """The hidden states received before these layers; zeros if the stack has not begun.

        The shape is that of one residual stream at all positions.
        """
        rows, positions, width = self._own_shape(shape)
        shape = rows, positions, width * self.sections[i].streams_after(layers.start)
        if not layers.stop:
            return self._received.new_zeros(shape)
        n = prod(shape)
        x, self._received = self._received[:n], self._received[n:]
        return x.view(shape)

    def _norm(self, i: int, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def norm(x: Tensor, *rest: Any) -> Tensor:
            layers = self.stages.of(self._stage)[i]
            x = forward(x, *rest) if ends_stack(layers, self.stages.layers[i]) else x
            self._outputs.append(x)
            return x

        return norm
