"""The random numbers drawn by the layers of other pipeline stages, which a stage must skip.

One process draws the masks of dropout from one generator, layer after layer. So that stages draw
the same, each begins where the layers before it leave the generator, and draws what they do.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.nn.dropout import Dropout, LayerDrop
from addnorm.nn.moe import MixtureOfExperts
from addnorm.training.parallel.masks import draws_numbers, outermost
from addnorm.training.parallel.stages import Stages, sections_of

AT_ONCE = 2**16
"""The most numbers of 64 bits that are drawn at a time to be skipped."""

LayerIndex = tuple[int, int]
"""The number of a section and of a layer in it; -1 for the embedding."""


@dataclass(frozen=True)
class Begin:
    """The start of an embedding or layer, which training skips with probability `p`."""

    place: LayerIndex
    p: float = 0.0


@dataclass(frozen=True)
class Numbers:
    """A draw of several 64-bit numbers."""

    n: int

    def draw(self) -> None:
        scratch = torch.empty(min(self.n, AT_ONCE), dtype=torch.int64)
        for first in range(0, self.n, AT_ONCE):
            scratch[: self.n - first].random_(-(2**63), None)


class Seed:
    """A draw of the seed for a part's own generator."""

    def draw(self) -> None:
        torch.randint(2**62, ())


class LayerEnd:
    """The end of a layer."""


Event = Begin | Numbers | Seed | LayerEnd


class Draws:
    """The random draws of a model in training, by the shapes of its inputs.

    It is computed once for each, by a copy of the model without values (on the `meta` device).
    """

    def __init__(self, model: nn.Module, stages: Stages) -> None:
        values = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in model.parameters()
        }
        self.model = copy.deepcopy(model, values).to("meta").train()  # pyright: ignore[reportArgumentType]
        self.firsts = {_first(stages, stage): stage for stage in range(stages.total)}
        self._events: list[Event] = []
        self._known: dict[tuple[tuple[str, torch.Size], ...], list[Event]] = {}
        self._watch()

    @staticmethod
    def needed(model: nn.Module) -> bool:
        """Whether a model draws random numbers in training."""
        return any(
            (isinstance(module, Dropout | LayerDrop) and module.p > 0) or draws_numbers(module)
            for module in model.modules()
        )

    def states(self, inputs: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """The state of the generator at the start of each stage with these inputs, by stage number.

        The generator is left where the last stage leaves it.
        """
        states = dict[int, Tensor]()
        left_out = False
        for event in self._events_of(inputs):
            match event:
                case Begin(place, p):
                    if place in self.firsts:
                        states[self.firsts[place]] = torch.get_rng_state()
                    left_out = p > 0 and float(torch.rand(())) < p
                case LayerEnd():
                    left_out = False
                case _ if not left_out:
                    event.draw()
                case _:
                    pass
        return states

    def _events_of(self, inputs: Mapping[str, Tensor]) -> list[Event]:
        key = tuple((name, tensor.shape) for name, tensor in inputs.items())
        if key not in self._known:
            self._events = self._known[key] = []
            try:
                with torch.no_grad(), torch.random.fork_rng([]):
                    self.model(**{name: tensor.to("meta") for name, tensor in inputs.items()})
            except (RuntimeError, NotImplementedError) as error:
                raise InputError(
                    "parallel.pipeline: what dropout draws in other stages cannot be known, since "
                    f"a part of the model needs values to compute shapes ({error}): set dropout to "
                    "0, or leave pipeline out"
                ) from error
        return self._known[key]

    def _note(self, event: Event) -> None:
        self._events.append(event)

    def _watch(self) -> None:
        """Make the parts of the copied model record their draws."""
        for i, section in enumerate(sections_of(self.model)):
            section.embed.register_forward_pre_hook(self._noting(Begin((i, -1))))
            section.embed.register_forward_hook(self._noting(LayerEnd()))
            drop = section.stack.layer_drop
            if drop is not None:
                vars(drop)["forward"] = lambda x, layer: layer(x)
            for layer, block in enumerate(section.stack.blocks):
                begin = Begin((i, layer), 0.0 if drop is None else drop.p)
                block.register_forward_pre_hook(self._noting(begin))
                block.register_forward_hook(self._noting(LayerEnd()))
        private = [m for m in outermost(self.model, draws_numbers) if not isinstance(m, Dropout)]
        inside = {inner for module in private for inner in module.modules()}
        for module in private:
            module.register_forward_pre_hook(self._noting(Seed()))
        for module in self.model.modules():
            if isinstance(module, MixtureOfExperts):  # whose shapes depend on values
                vars(module)["forward"] = lambda x: x
            elif isinstance(module, Dropout):
                vars(module)["forward"] = self._dropout(module.p, noted=module not in inside)

    def _noting(self, event: Event) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self._note(event)

        return note

    def _dropout(self, p: float, *, noted: bool) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if noted and p > 0:
                self._note(Numbers(-(-x.numel() // 4)))
            return x

        return forward


def _first(stages: Stages, stage: int) -> LayerIndex:
    """The first embedding or layer of a stage."""
    for i, layers in enumerate(stages.of(stage)):
        if layers:
            return i, layers.start or -1
    raise AssertionError("a stage has a layer")
