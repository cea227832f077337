"""Training as it is, with every block compiled, and with the whole step compiled; cold times too.

    python benchmarks/compiled_blocks.py

Runs the bench's decoders each of the three ways in one process, their rounds in turn, and profiles
the plain one for what its casts of weights take in bfloat16. Writes `results/compiled_blocks.json`:
median seconds a step, the seconds of the first, and the share of copies in a plain step's time.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

from addnorm.bench.ours import Repeated, decoder_config
from addnorm.bench.training import CHARACTERS, DECODER, DecoderSizes
from addnorm.data.batches.batch import Batch
from addnorm.nn.choices import choices
from addnorm.processor import cores, processor
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
    """A trainer of the bench's decoder."""
    torch.manual_seed(0)
    model = decoder_config(sizes).build(sizes.vocab_size)
    if way == "blocks":
        for block in model.stack.blocks:
            block.compile()
    batches = [Batch.of({"tokens": x}, y, []) for x, y in sizes.batches()]
    config = TrainConfig(steps=10**9, precision=precision, compile=way == "whole", device="cpu")
    return Trainer(model, Repeated(batches), config, Path(tempfile.mkdtemp()))


def seconds_of(trainer: Trainer, steps: int) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    for _ in range(steps):
        trainer.update(trainer.next_group())
    return (time.perf_counter() - start) / steps


def copies(trainer: Trainer) -> float:
    """The share of a step's processor time that copies and casts take, of weights and all else."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        seconds_of(trainer, STEPS)
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return sum(e.self_cpu_time_total for e in events if e.key == "aten::copy_") / total


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(cores())
    choices()  # calibrates first
    results: dict[str, object] = {"processor": processor(), "torch": torch.__version__}
    for name, (sizes, precision) in WORK.items():
        trainers = {way: trainer_of(way, sizes, precision) for way in WAYS}
        first = {way: seconds_of(one, 1) for way, one in trainers.items()}
        for one in trainers.values():
            seconds_of(one, 1)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, one in trainers.items():
                times[way].append(seconds_of(one, STEPS))
        results[name] = {
            "seconds a step": {way: statistics.median(found) for way, found in times.items()},
            "seconds of the first step": first,
            "gain over plain": {
                way: statistics.median(
                    a / b for a, b in zip(times["plain"], times[way], strict=True)
                )
                for way in WAYS
            },
            "share of copies in a plain step": copies(trainers["plain"]),
        }
        print(name, json.dumps(results[name], indent=1), flush=True)
    file = Path(__file__).parent / "results" / "compiled_blocks.json"
    file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
