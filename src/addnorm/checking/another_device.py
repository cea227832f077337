"""The meta device stands in for a GPU: nothing comes from the CPU, and nothing waits for values.

Its tensors have shapes and no numbers. A tensor that a forward pass makes on the CPU cannot be
combined with them, and whoever reads a number (`.item()`, `bool(tensor)`) is refused. This is the
test of a GPU that every machine can run.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import torch

from addnorm.checking.cached import Reader
from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.checking.matrix import Cell
from addnorm.checking.stand_in import THERE, moved, stand_in_device
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.moe import MixtureOfExperts

NEEDS_VALUES: Mapping[type, str] = {
    MixtureOfExperts: "a mixture counts the tokens of each expert; compared with values",
    FlexCore: "a kernel of flex attention is compiled for its device; left out",
}
"""The modules that cannot run without values, with the reason; models with others have to."""


def runs_on_another_device(cell: Cell) -> bool:
    """Whether a cell is run there: every sixteenth one, since meta kernels are slow."""
    return zlib.crc32(cell.id.encode()) % 16 == 0


def another_device(case: Case) -> Iterator[Comparison]:
    """Forward and backward, and reading with a cache, with rows selected on the way.

    A model that needs values runs where tensors have them: only waits are allowed there.
    """
    modules = {type(module) for module in case.model.modules()}
    needs = [kind for kind in NEEDS_VALUES if kind in modules]
    for kind in needs:
        yield Comparison("", *_both(True), needs_values=NEEDS_VALUES[kind])
    if FlexCore in needs:
        return
    with stand_in_device() if needs else nullcontext():
        found = [*_everything(replace(case, model=_moved(case.model, needs != [])))]
    yield from found


def _moved(model: Model, with_values: bool) -> Model:
    return moved(deepcopy(model)) if with_values else deepcopy(model).to(THERE)


def _everything(case: Case) -> Iterator[Comparison]:
    inputs = [x.to(THERE) for x in case.batch(case.side())[0]]
    outputs = case.model(*inputs)
    outputs.sum().backward()
    yield _there("forward", outputs.device)
    where = [p.grad.device for p in case.model.parameters() if p.grad is not None]
    yield Comparison("backward on another device", *_both(set(where) == {THERE}))
    if isinstance(case.model, DecoderModel | EncoderDecoderModel) and case.may_cache():
        with torch.no_grad():
            yield from _reading(case.model, inputs)


def _reading(
    model: DecoderModel | EncoderDecoderModel, inputs: list[torch.Tensor]
) -> Iterator[Comparison]:
    *sources, tokens, valid = _in_order(inputs)
    reader = Reader(model, tokens, valid, model.new_cache())
    if isinstance(model, EncoderDecoderModel):
        read, reader.memory_valid = sources
        reader.memory = model.encode(read, reader.memory_valid)
    n = tokens.shape[1]
    for a, b in pairwise((0, n // 2, n - 1, n)):
        yield _there("reading with a cache", reader.read(slice(a, b)).device)
        rows = torch.zeros(len(reader.tokens), dtype=torch.long, device=THERE)
        reader.select(rows)


def _in_order(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The source and its mask, if there is one, then the tokens and theirs."""
    if len(inputs) == 2:
        return inputs
    read, tokens, read_valid, valid = inputs
    return [read, read_valid, tokens, valid]


def _there(what: str, device: torch.device) -> Comparison:
    return Comparison(f"{what} on another device", *_both(device == THERE))


def _both(holds: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(holds), torch.tensor(True)
