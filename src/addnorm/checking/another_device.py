"""A device that stands in for a GPU: models, training and decoding must give the CPU's results.

It is the meta device, whose tensors have shapes and no numbers. A tensor that a forward pass makes
on the CPU cannot be combined with them, and reading a number (`.item()`, `bool(tensor)`) raises an
error. Training, writing and quantised models need numbers, which `stand_in` adds. This is the test
of a GPU that every machine can run.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from addnorm.checking.cached import Reader
from addnorm.checking.case import Case, drawn, padded
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.decoding import MODELS, small_model, token_table, written
from addnorm.checking.matrix import Cell
from addnorm.checking.stand_in import THERE, moved, numbers, stand_in_device
from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.generate.beam import BeamConfig
from addnorm.generate.decode import DecodingConfig
from addnorm.generate.rules import RulesConfig
from addnorm.generate.sampling import GreedyConfig, SampleConfig
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.nn.attention.flex import FlexCore
from addnorm.nn.moe import MixtureOfExperts
from addnorm.quantize import Int4Config, Int8Config, QuantizationConfig, WeightsOnlyConfig, quantize
from addnorm.training.optim import AdamWConfig, MuonConfig, OptimizerConfig
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

NEEDS_VALUES: Mapping[type, str] = {
    MixtureOfExperts: "a mixture counts the tokens of each expert; compared with values",
    FlexCore: "a kernel of flex attention is compiled for its device; left out",
}
"""The modules that cannot run without values, with the reason; all other models must."""


def runs_on_another_device(cell: Cell) -> bool:
    """Return whether a cell is tested there: every sixteenth, since meta kernels are slow."""
    return zlib.crc32(cell.id.encode()) % 16 == 0


def another_device(case: Case) -> Iterator[Comparison]:
    """Compare forward and backward passes, and reading with a cache while rows are selected.

    A model that needs values runs on the stand-in with numbers, where reading them is allowed.
    """
    modules = {type(module) for module in case.model.modules()}
    needs = [kind for kind in NEEDS_VALUES if kind in modules]
    for kind in needs:
        yield Comparison.that("", True)._replace(needs_values=NEEDS_VALUES[kind])
    if FlexCore in needs:
        return
    with stand_in_device() if needs else nullcontext():
        comparisons = [*_everything(replace(case, model=_moved(case.model, needs != [])))]
    yield from comparisons


def _moved(model: Model, with_values: bool) -> Model:
    return moved(deepcopy(model)) if with_values else deepcopy(model).to(THERE)


def _everything(case: Case) -> Iterator[Comparison]:
    inputs = [x.to(THERE) for x in case.batch(case.side())[0]]
    outputs = case.model(*inputs)
    outputs.sum().backward()
    yield _there("forward", outputs.device)
    where = [p.grad.device for p in case.model.parameters() if p.grad is not None]
    yield Comparison.that("backward on another device", set(where) == {THERE})
    if isinstance(case.model, DecoderModel | EncoderDecoderModel) and case.may_cache():
        with torch.no_grad():
            yield from _reading(case.model, inputs)


def _reading(
    model: DecoderModel | EncoderDecoderModel, inputs: list[torch.Tensor]
) -> Iterator[Comparison]:
    *sources, tokens, valid = _in_order(inputs)
    reader = Reader(model, tokens, valid, model.new_cache())
    if isinstance(model, EncoderDecoderModel):
        source, reader.memory_valid = sources
        reader.memory = model.encode(source, reader.memory_valid)
    n = tokens.shape[1]
    for a, b in pairwise((0, n // 2, n - 1, n)):
        yield _there("reading with a cache", reader.read(slice(a, b)).device)
        rows = torch.zeros(len(reader.tokens), dtype=torch.long, device=THERE)
        reader.select(rows)


def _in_order(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the source and its mask, if any, then the tokens and their mask."""
    if len(inputs) == 2:
        return inputs
    source, tokens, source_valid, valid = inputs
    return [source, source_valid, tokens, valid]


def _there(what: str, device: torch.device) -> Comparison:
    return Comparison.that(f"{what} on another device", device == THERE)


Writer = DecoderModel | EncoderDecoderModel

WRITING: Mapping[str, DecodingConfig] = {
    "greedy": GreedyConfig(),
    "greedy_by_rules": GreedyConfig(rules=RulesConfig(repetition_penalty=1.3, min_new_tokens=2)),
    "sampling": SampleConfig(top_p=0.8, top_k=5),
    "beams": BeamConfig(beams=3, n_best=2),
}
"""Decoding strategies, each with another loop."""

OPTIMIZERS: Mapping[str, OptimizerConfig] = {"adamw": AdamWConfig(), "muon": MuonConfig()}

SCHEMES: Mapping[str, QuantizationConfig] = {
    "int8": Int8Config(activations=WeightsOnlyConfig()),
    "int8_dynamic": Int8Config(),
    "int4": Int4Config(),
}
"""Quantisations that need no data."""

TOLERANCES = {"int4": 0.02}
"""The CPU's product for four bits rounds inputs to bfloat16; others keep the type's tolerance."""

LENGTHS = (5, 2, 7)
LIMIT = 6


def device_cells() -> list[str]:
    """Return the names of all checks of training, writing and quantisation."""
    ways = (*WRITING, *OPTIMIZERS, *SCHEMES)
    return [f"device/{model}/{way}" for model in MODELS for way in ways]


def compare_device(name: str) -> CellResult:
    """Compare one way of using one model on the device with the CPU."""
    return run_comparisons(name, device_comparisons(name))


def device_comparisons(name: str) -> Iterator[Comparison]:
    """Yield the results on the device next to those on the CPU."""
    _, model_name, way = name.split("/")
    model, draw = deepcopy(small_model(model_name)), random.Random(name)
    if way in OPTIMIZERS:
        model = model.double()  # in which no rounding error looks like a gradient
        batches = [_batch(model, draw), _batch(model, draw)]
        yield from _on_either_device(way, model, lambda m: _trained(m, batches, OPTIMIZERS[way]))
        return
    if way in SCHEMES:
        quantize(model, SCHEMES[way])
    texts, decoding = [drawn(n, draw) for n in LENGTHS], WRITING.get(way, GreedyConfig())
    yield from _on_either_device(way, model, lambda m: _written(m, texts, decoding))


def _on_either_device(
    way: str, model: Writer, run: Callable[[Writer], Mapping[str, Tensor]]
) -> Iterator[Comparison]:
    """Yield the results of a run on both devices; during the second, nothing else runs there."""
    expected = run(deepcopy(model))
    with stand_in_device():
        ours = run(moved(deepcopy(model)))
    for name, value in expected.items():
        yield Comparison(f"{name} of {way} on the device", ours[name], value, TOLERANCES.get(way))


def _batch(model: Writer, draw: random.Random) -> Batch:
    """A batch with padding."""
    texts = [drawn(n, draw) for n in LENGTHS]
    tokens, valid = padded(texts, "right", draw)
    targets = torch.where(valid, tokens, IGNORE)
    inputs = {"tokens": tokens, "valid": valid}
    if isinstance(model, EncoderDecoderModel):
        source, source_valid = padded(texts[::-1], "right", draw)
        inputs = {
            "source": source,
            "target": tokens,
            "source_valid": source_valid,
            "target_valid": valid,
        }
    return Batch.of(inputs, targets, list(range(len(texts))))


class _Batches:
    """A loader with the same batches in every epoch."""

    def __init__(self, held: list[Batch]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from number `start` on."""
        return iter(self.held[start:])


def _trained(
    model: Writer, batches: list[Batch], optimizer: OptimizerConfig
) -> Mapping[str, Tensor]:
    """Return the weights and their average after two clipped steps of two accumulated batches."""
    config = TrainConfig(
        epochs=2, accumulate=2, clip=0.5, optimizer=optimizer, ema=0.9, device="cpu"
    )
    device = next(model.parameters()).device
    if device == THERE:  # a device that no recipe can name
        object.__setattr__(config, "device", device.type)
    with TemporaryDirectory() as folder:
        trainer = Trainer(model, _Batches(batches), config, Path(folder))
        for _ in range(2):
            trainer.update(trainer.next_group())
        assert trainer.average is not None
        tensors = {"average": _flat(trainer.average.weights.values())}
        trainer.journal.flush()
    return tensors | {"weights": _flat(model.parameters())}


def _written(
    model: Writer, texts: Sequence[Sequence[int]], decoding: DecodingConfig
) -> Mapping[str, Tensor]:
    """Return the tokens and scores of the texts that a model writes."""
    texts_written = [text for best in written(model, texts, decoding, LIMIT) for text in best]
    return {
        "tokens": token_table(texts_written).double(),
        "scores": torch.tensor([text.score for text in texts_written]),
    }


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return all numbers in one vector, on the CPU."""
    return torch.cat([_numbers(x).flatten() for x in tensors])


def _numbers(x: Tensor) -> Tensor:
    return numbers(x) if x.device == THERE else x.detach()
