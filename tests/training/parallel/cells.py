"""Cells of the test matrix, each split over processes in each way; a script for `torchrun`.

`torchrun --nproc-per-node N -m tests.training.parallel.cells FILE` writes how far logits, gradients
and their norm are from those of one process, by plan and cell, or why a cell is not split. With
`every`, of all cells of the matrix.
"""

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.checking.axes import ARCHITECTURES, AXES, MIXERS, VARIANTS
from addnorm.checking.case import Case
from addnorm.checking.matrix import AROUND_MIXERS, USUAL, Cell, cells
from addnorm.errors import InputError
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.positions.position import Position
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import ExpandedKeys, Queries
from addnorm.training.parallel import context
from addnorm.training.parallel.launch import joined
from addnorm.training.parallel.plan import ParallelTrainingConfig, launched
from addnorm.training.parallel.processes import Processes
from addnorm.training.parallel.stages import staged_sections
from addnorm.training.parallel.tensors import whole
from addnorm.training.parallel.world import OneProcess, World


class HeadGains(nn.Module):
    """A score of one's own: a gain of each head, which says how it splits, or does not."""

    def __init__(self, n_heads: int, scale: float) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(n_heads))
        self.scale = scale

    def forward(self, q: Queries, k: ExpandedKeys) -> Tensor:
        return self.gains[:, None, None] * (q @ k.mT) * self.scale


class SplitHeadGains(HeadGains):
    splits: ClassVar[Splits] = {"gains": Split(0)}


class Squared(DotProduct):
    """A subclass of ours, which does not inherit how that one splits."""


@dataclass(frozen=True)
class OwnScoreConfig:
    module: type[nn.Module]

    def build(self, n_heads: int, d_head: int) -> nn.Module:
        if self.module is Squared:
            return Squared(d_head**-0.5)
        return self.module(n_heads, d_head**-0.5)


class OwnFeedForward(nn.Module):
    """A feed-forward layer of one's own, computed whole in every process."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.proj(x))


class SplitFeedForward(nn.Module):
    """A feed-forward layer of one's own, which says how it splits."""

    splits: ClassVar[Splits] = {"into": Split(0), "out": Split(1), "phases": Split(0)}

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.into = nn.Linear(d_model, 7)
        self.phases = nn.Parameter(torch.zeros(7))
        self.gain = nn.Parameter(torch.ones(()))
        self.out = nn.Linear(7, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gain * torch.sin(self.into(x) + self.phases))


@dataclass(frozen=True)
class OwnFeedForwardConfig:
    module: type[nn.Module]

    def build(self, d_model: int) -> nn.Module:
        return self.module(d_model)


class OwnMixer(nn.Module):
    """A mixer of one's own, which computes with all heads of the model's positions."""

    pattern = Full()

    def __init__(self, d_model: int, position: Position) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)
        self.position = position

    def forward(self, x: Tensor, ctx: Context, cache: Any = None) -> Tensor:
        heads = self.proj(x).unflatten(-1, (2, -1)).transpose(1, 2)
        bias = self.position.score_bias(heads, ctx)
        scores = 0.0 if bias is None else bias(slice(None), slice(None))
        mixed = (heads @ heads.mT + scores).softmax(-1) @ heads
        return mixed.transpose(1, 2).flatten(2)

    def new_cache(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class OwnMixerConfig:
    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> nn.Module:
        return OwnMixer(d_model, position)


PLANS = ("tensor", "context")


def usual(**parts: str) -> tuple[tuple[str, str], ...]:
    return tuple({**USUAL, **parts}.items())


OWN = {
    "own_score": ("attention.score", OwnScoreConfig(SplitHeadGains)),
    "own_feedforward": ("feedforward", OwnFeedForwardConfig(SplitFeedForward)),
    "own_whole_feedforward": ("feedforward", OwnFeedForwardConfig(OwnFeedForward)),
    "own_mixer": ("attention", OwnMixerConfig()),
    "undeclared": ("attention.score", OwnScoreConfig(HeadGains)),
    "inherited": ("attention.score", OwnScoreConfig(Squared)),
}


def chosen() -> Iterator[Cell]:
    """Yield each part on each axis, each mixer and each variant, once."""
    every = [(axis, name) for axis, named in AXES.items() for name in named]
    yield from (Cell(family="decoder", parts=usual(**dict([part]))) for part in every)
    for axis, name in every:
        if axis in ("position", "heads", "score"):
            parts = usual(**{axis: name, "placement": "post"})
            yield Cell(family="encoder_decoder", parts=parts)
    for name in ("gqa", "mqa"):
        yield Cell(family="decoder", parts=usual(heads=name, core="differential"))
        yield Cell(family="decoder", parts=usual(heads=name, output="gated", position="t5"))
        yield Cell(family="decoder", parts=usual(heads=name, output="differential2"))
    around = tuple((axis, name) for axis, name in usual() if axis in AROUND_MIXERS)
    yield from (Cell(family="encoder", parts=around, mixer=mixer) for mixer in MIXERS)
    for variant, change in VARIANTS.items():
        family = next(name for name in ARCHITECTURES if name in change.architectures)
        yield Cell(family=family, parts=usual(), variant=variant)
    for name, (field, part) in OWN.items():
        yield Cell(family="decoder", parts=usual(position="alibi"), own=(field, part, name))


def is_staged(cell: Cell) -> bool:
    """Whether stages can compute a cell, which hand on hidden states alone."""
    try:
        staged_sections(Case.of(cell).model)
    except InputError:
        return False
    return True


def outcomes(cell: Cell, worlds: Mapping[str, Processes]) -> dict[str, float | str]:
    """The largest difference of a cell from one process by each plan, or why it is not split."""
    case = Case.of(cell)
    inputs, valid = case.batch("right")
    results = [differentiated(case.model, inputs, valid)]
    gradients: list[Tensor] = [p.grad for p in case.model.parameters() if p.grad is not None]
    results += [*gradients, nn.utils.get_total_norm(gradients)]
    answers = dict[str, float | str]()
    for plan, world in worlds.items():
        model = copy.deepcopy(case.model)
        model.zero_grad()
        try:
            twin = world.place(model, by_token=False)
        except InputError as error:
            answers[plan] = str(error)
            continue
        split = [differentiated(twin, inputs, valid, world)]
        world.sum_gradients(twin)
        learned = [p for p in twin.parameters() if p.grad is not None]
        split += [whole(p.grad, p) for p in learned if p.grad is not None]
        pairs = zip(results, [*split, world.norm(learned)], strict=True)
        answers[plan] = max(float((a - b).abs().max() / (1 + a.abs().max())) for a, b in pairs)
    return answers


def differentiated(
    model: nn.Module, inputs: tuple[Tensor, ...], valid: Tensor, world: World | None = None
) -> Tensor:
    """The outputs of a model; its parameters have the gradients of a projection of them."""
    outputs = model(*inputs)
    outputs = outputs[valid] if outputs.ndim == 3 else outputs
    direction = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
    (world or OneProcess()).counted_loss((outputs * direction).sum()).backward()
    return outputs.detach()


def main(file: Path, which: Iterator[Cell]) -> None:
    """Write the outcome of each cell by each plan."""
    n = launched().processes
    with joined(ParallelTrainingConfig(data=n)) as rows:
        worlds = {plan: Processes(plan=ParallelTrainingConfig(**{plan: n})) for plan in PLANS}
        by_cell = {cell.id: outcomes(cell, worlds) for cell in which if cell.refusal() is None}
        if rows.leads:
            by_plan = {p: {name: of[p] for name, of in by_cell.items()} for p in PLANS}
            file.write_text(json.dumps(by_plan))


if __name__ == "__main__":
    torch.set_num_threads(1)
    context.FEWEST = 0
    main(Path(sys.argv[1]), cells() if "every" in sys.argv else chosen())
