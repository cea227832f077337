"""The cost of a large text: seconds before the first step, and bytes of memory for each token.

    python benchmarks/texts.py input.txt [--characters 1_000_000_000] [--subword 100_000_000]

Repeats a text to the sizes asked for, in a folder that is removed afterwards, and trains a small
decoder on it for a step, of characters and of byte-level BPE: in a process that has to tokenise
it, in one that finds it in the cache, and in one that has trained on a small part before, so that
all is imported, and memory is what the large one adds. On Linux. Writes
`results/texts.json`, where figures of other sizes stay.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

RECIPE = """
[data]
kind = "text"
train = "{text}"
valid_fraction = 0.01

[tokenizer]
{tokenizer}

[model]
kind = "decoder"
d_model = 64
n_layers = 2

[train]
steps = 1
batching = {{ kind = "windows", batch_size = 16, seq_len = 256 }}
"""

TOKENIZERS = {
    "characters": 'kind = "char"',
    "subword": 'kind = "bpe"\nvocab_size = 8000',
}
SIZES = {"characters": "1_000_000_000", "subword": "100_000_000"}
BATCHES = 300
"""Batches that are read after the first step, before memory is measured again."""


def resident() -> dict[str, int]:
    """The bytes of this process in memory: its own, and those of files that it maps."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if "Rss" in line}
    return {"own": sizes["RssAnon"], "files": sizes["RssFile"]}


def child(recipes: list[Path]) -> dict[str, object]:
    """One step of each recipe in this process: by the clock, in processor time, in memory."""
    marks = [("start", time.perf_counter(), time.process_time())]

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter(), time.process_time()))

    from addnorm.runs.recipes.recipe import read_recipe
    from addnorm.runs.train.train_run import TrainingSetup
    from addnorm.training.trainer import Trainer

    mark("imports")
    memory: list[dict[str, int]] = []
    for recipe in recipes:
        prepared = TrainingSetup(read_recipe(recipe))
        mark(f"{recipe.stem}, data and model")
        with tempfile.TemporaryDirectory() as folder:
            batches = prepared.loaders.train
            trainer = Trainer(prepared.model, batches, prepared.recipe.train, Path(folder))
            trainer.update(trainer.next_group())
            mark(f"{recipe.stem}, first step")
        memory.append(resident())
    for _ in islice(batches.batches(), BATCHES):
        pass
    memory.append(resident())
    ids = [split.tokens.ids for split in prepared.encoded.splits.values() if len(split)]
    for split in ids:
        for start in range(0, len(split), 2**20):
            split[start : start + 2**20].max()
    memory.append(resident())
    seconds = {
        name: [round(clock - before, 2), round(used - used_before, 2)]
        for (_, before, used_before), (name, clock, used) in pairwise(marks)
    }
    return {"seconds": seconds, "memory": memory, "tokens": sum(map(len, ids))}


def measured(*recipes: Path) -> dict[str, Any]:
    """Return the figures of a new process."""
    command = [sys.executable, __file__, "child", *map(str, recipes)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def of_one(text: str, size: int, tokenizer: str, folder: Path) -> dict[str, object]:
    """The figures of one kind of tokenizer on a text of so many bytes."""
    recipes: list[Path] = []
    for name, n in (("small", 500_000), ("large", size)):
        file = folder / f"{name}.txt"
        with file.open("w", encoding="utf-8", newline="") as out:
            for start in range(0, n, len(text)):
                out.write(text[: n - start])
        recipes.append(folder / f"{name}.toml")
        recipes[-1].write_text(RECIPE.format(text=file, tokenizer=tokenizer), encoding="utf-8")
    first = measured(recipes[1])
    cached = measured(recipes[1])
    warm = measured(*recipes)
    tokens = warm["tokens"]
    base, *later = warm["memory"]
    at = ("after the first step", f"after {BATCHES} batches", "with every token read once")
    return {
        "bytes of text": size,
        "tokens": tokens,
        "seconds, by the clock and of the processor": {
            "tokenised, in a new process": first["seconds"],
            "cached, in a new process": cached["seconds"],
            "cached, in a process that has trained on the small text": warm["seconds"],
        },
        "bytes a token in memory, own and mapped": {
            when: {kind: round((there[kind] - base[kind]) / tokens, 2) for kind in ("own", "files")}
            for when, there in zip(at, later, strict=True)
        },
    }


def main() -> None:
    """Measure both, and add them to the table, each under its size."""
    words = sys.argv[1:]
    if words[0] == "child":
        print(json.dumps(child([Path(word) for word in words[1:]])))
        return
    options = dict(zip(words[1::2], words[2::2], strict=True)) or SIZES
    sizes = {name.removeprefix("--"): int(size) for name, size in options.items()}
    out = Path(__file__).parent / "results" / "texts.json"
    before = json.loads(out.read_text(encoding="utf-8"))["results"] if out.exists() else {}
    text = Path(words[0]).read_text(encoding="utf-8")
    results: dict[str, dict[str, object]] = {}
    for name in sizes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ADDNORM_CACHE"] = f"{folder}/cache"
            row = f"{name}, {sizes[name]:,} bytes"
            results[row] = of_one(text, sizes[name], TOKENIZERS[name], Path(folder))
            results[row]["load"] = [round(load, 1) for load in os.getloadavg()]
        print(row, json.dumps(results[row], indent=1))
    facts = {
        "command": f"python benchmarks/texts.py input.txt ({Path(words[0]).name} repeated)",
        "python": platform.python_version(),
        "processor": platform.machine(),
        "processors": os.cpu_count(),
        "results": before | results,
    }
    out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
