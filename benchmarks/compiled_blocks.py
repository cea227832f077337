"""Training without compilation, with every block compiled, and with the whole step compiled.

    python benchmarks/compiled_blocks.py

Runs the bench's decoders each of the three ways in one process, their rounds in turn, and profiles
the plain one for what its casts of weights take in bfloat16. Writes `results/compiled_blocks.json`:
median seconds a step, the seconds of the first, and the share of copies in a plain step's time.
"""

import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from timing import seconds_in_turn, write_results
from torch.profiler import ProfilerActivity, profile

from addnorm.bench.ours import Repeated, decoder_config
from addnorm.bench.training import CHARACTERS, DECODER, DecoderSizes
from addnorm.data.batches.batch import Batch
from addnorm.machine import cores
from addnorm.nn.choices import choices
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

WAYS = ("plain", "blocks", "whole")
WORK: dict[str, tuple[DecoderSizes, Literal["float32", "bfloat16"]]] = {
    "decoder 4 × 128, float32": (CHARACTERS, "float32"),
    "decoder 6 × 384, float32": (DECODER, "float32"),
    "decoder 6 × 384, bfloat16": (DECODER, "bfloat16"),
}
ROUNDS, STEPS = 5, 2


def trainer_of(way: str, sizes: DecoderSizes, precision: Literal["float32", "bfloat16"]) -> Trainer:
    """Return a trainer of the benchmark's decoder."""
    torch.manual_seed(0)
    model = decoder_config(sizes).build(sizes.vocab_size)
    if way == "blocks":
        for block in model.stack.blocks:
            block.compile()
    batches = [Batch.of({"tokens": x}, y, []) for x, y in sizes.batches()]
    config = TrainConfig(steps=10**9, precision=precision, compile=way == "whole", device="cpu")
    return Trainer(model, Repeated(batches), config, Path(tempfile.mkdtemp()))


def train(trainer: Trainer, steps: int) -> None:
    """Make some steps."""
    for _ in range(steps):
        trainer.update(trainer.next_group())


def copies(trainer: Trainer) -> float:
    """Return the share of a step's processor time that copies and casts take."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        train(trainer, STEPS)
    events = record.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return sum(e.self_cpu_time_total for e in events if e.key == "aten::copy_") / total


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(cores())
    choices()  # calibrates first
    results: dict[str, object] = {}
    for name, (sizes, precision) in WORK.items():
        trainers = {way: trainer_of(way, sizes, precision) for way in WAYS}
        works = {way: partial(train, trainer, 1) for way, trainer in trainers.items()}
        first = seconds_in_turn(works, 2, warm_up=0)
        works = {way: partial(train, trainer, STEPS) for way, trainer in trainers.items()}
        times = seconds_in_turn(works, ROUNDS, warm_up=0)
        results[name] = {
            "seconds a step": {way: median(seconds) / STEPS for way, seconds in times.items()},
            "seconds of the first step": {way: seconds[0] for way, seconds in first.items()},
            "gain over plain": {
                way: median(a / b for a, b in zip(times["plain"], times[way], strict=True))
                for way in WAYS
            },
            "share of copies in a plain step": copies(trainers["plain"]),
        }
    write_results("compiled_blocks", results)


if __name__ == "__main__":
    main()
