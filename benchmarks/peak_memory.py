"""Is the peak of memory that `addnorm train --dry-run` predicts what training takes?

    ADDNORM_DATA=DATA python benchmarks/peak_memory.py

For each recipe, one process predicts the peak and another trains: the largest batches, a dozen
others in the order of an epoch, and a checkpoint at the end. Writes both, and what the count alone
gives before any step, to `results/peak_memory.json`.
"""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import torch

from addnorm.data.batches.buckets import Batch
from addnorm.machine import peak_resident_memory
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.cost import largest_batches, predict_peak_memory
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.training.trainer import Trainer

HERE = Path(__file__).parent
LARGER = {
    "model.d_model": "256",
    "model.n_layers": "6",
    "train.batching.batch_size": "16",
    "train.batching.seq_len": "256",
}
ADAMW_8BIT = {"train.optimizer": '{ kind = "adamw_8bit" }'}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "characters, decoder 4 × 128": ("shakespeare-char", {}),
    "characters, decoder 6 × 256": ("shakespeare-char", LARGER),
    "the same with activation checkpointing": (
        "shakespeare-char",
        {**LARGER, "train.activation_checkpointing": "block"},
    ),
    "the same with states of 8 bits": ("shakespeare-char", {**LARGER, **ADAMW_8BIT}),
    "sentences, encoder 1 × 256": ("sst2", {}),
    "questions, convolutions 3 × 100 over 256": ("trec", {}),
    "translation, 4 + 4 × 128, bfloat16": ("multi30k-en-de", {}),
}
OTHERS = 12


class LargestFirst:
    """The largest batches of a loader, then some in their order."""

    def __init__(self, prepared: TrainingSetup) -> None:
        self.loader = prepared.loaders.train
        self.largest = largest_batches(self.loader)

    def __len__(self) -> int:
        return len(self.largest) + OTHERS

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return islice(chain(self.largest, self.loader.batches(epoch)), start, len(self))


def prepared(name: str) -> TrainingSetup:
    """A case with its data and model."""
    recipe, overrides = CASES[name]
    return TrainingSetup(read_recipe(HERE.parent / "recipes" / f"{recipe}.toml", overrides))


def predict(name: str) -> dict[str, int]:
    """Return the peak that a dry run predicts."""
    peak = predict_peak_memory(prepared(name))
    return {"predicted": peak.total, "counted": peak.total - peak.other}


def train(name: str) -> dict[str, int]:
    """Return the peak of training."""
    ready = prepared(name)
    batches = LargestFirst(ready)
    config = ready.recipe.train
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(ready.model, batches, config, Path(folder), validation=ready.validation())
        trainer.validation = None
        trainer.fit(until=len(batches))
    return {"trained": peak_resident_memory() or 0}


def in_a_process(what: str, name: str) -> dict[str, int]:
    """Run either function in a new process."""
    command = [sys.executable, __file__, what, name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Predict and measure every case, and keep the figures."""
    results = dict[str, dict[str, float]]()
    for name in CASES:
        sizes = {**in_a_process("predict", name), **in_a_process("train", name)}
        row = {key: round(size / 2**20, 1) for key, size in sizes.items()}
        row["error, %"] = round(100 * (sizes["predicted"] / sizes["trained"] - 1), 1)
        results[name] = row
        print(name, row, flush=True)
    about = {
        "command": "python benchmarks/peak_memory.py",
        "unit": "MiB of physical memory at the peak; counted: before any step was made",
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps({**about, "results": results}, indent=2, ensure_ascii=False)
    (HERE / "results" / "peak_memory.json").write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps({"predict": predict, "train": train}[sys.argv[1]](sys.argv[2])))
    else:
        main()
