"""Training, writing and quantised models on a device that stands in for a GPU, as on the CPU."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from addnorm.checking.batches import drawn, padded
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.decoding import MODELS, small_model, token_table, written
from addnorm.checking.stand_in import THERE, moved, numbers, stand_in_device
from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.generate.beam import BeamConfig
from addnorm.generate.decode import DecodingConfig
from addnorm.generate.rules import RulesConfig
from addnorm.generate.sampling import GreedyConfig, SampleConfig
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.quantize import Int4Config, Int8Config, QuantizationConfig, WeightsOnlyConfig, quantize
from addnorm.training.optim import AdamWConfig, MuonConfig, OptimizerConfig
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

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
    """The names of all checks on the device."""
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
        yield from _both(way, model, lambda one: _trained(one, batches, OPTIMIZERS[way]))
        return
    if way in SCHEMES:
        quantize(model, SCHEMES[way])
    texts, decoding = [drawn(n, draw) for n in LENGTHS], WRITING.get(way, GreedyConfig())
    yield from _both(way, model, lambda one: _written(one, texts, decoding))


def _both(
    way: str, model: Writer, run: Callable[[Writer], Mapping[str, Tensor]]
) -> Iterator[Comparison]:
    """The figures of a run on both devices; nothing else runs while the device stands in."""
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


class _Given:
    """Batches that are given."""

    def __init__(self, held: list[Batch]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The same batches in each epoch."""
        return iter(self.held[start:])


def _trained(
    model: Writer, batches: list[Batch], optimizer: OptimizerConfig
) -> Mapping[str, Tensor]:
    """The weights and their average after two steps of two accumulated batches, clipped."""
    config = TrainConfig(
        epochs=2, accumulate=2, clip=0.5, optimizer=optimizer, ema=0.9, device="cpu"
    )
    device = next(model.parameters()).device
    if device == THERE:  # a device that no recipe can name
        object.__setattr__(config, "device", device.type)
    with TemporaryDirectory() as folder:
        trainer = Trainer(model, _Given(batches), config, Path(folder))
        for _ in range(2):
            trainer.update(trainer.next_group())
        assert trainer.average is not None
        found = {"average": _flat(trainer.average.weights.values())}
        trainer.journal.flush()
    return found | {"weights": _flat(model.parameters())}


def _written(
    model: Writer, texts: Sequence[Sequence[int]], decoding: DecodingConfig
) -> Mapping[str, Tensor]:
    """The tokens and scores of what is written."""
    found = [one for best in written(model, texts, decoding, LIMIT) for one in best]
    return {
        "tokens": token_table(found).double(),
        "scores": torch.tensor([one.score for one in found]),
    }


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers, on the CPU."""
    return torch.cat([_numbers(x).flatten() for x in tensors])


def _numbers(x: Tensor) -> Tensor:
    return numbers(x) if x.device == THERE else x.detach()
