"""Train a recipe with one or more seeds, score it, and keep the figures in benchmarks/results.

python benchmarks/recipes.py recipes/trec.toml --seeds 1 2 3
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from addnorm import __version__
from addnorm.runs.files.folder import read_settings

RESULTS = Path(__file__).parent / "results"


def addnorm(*words: str) -> str:
    """Run one command of ours; return what it printed."""
    command = [sys.executable, "-m", "addnorm", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train_and_score(recipe: Path, seed: int, split: str, folder: Path) -> dict[str, object]:
    """One seed: the scores on a split, and what training cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    addnorm("train", str(recipe), "--train.seed", str(seed), "--out", str(folder))
    minutes = (time.perf_counter() - start) / 60
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    scores = json.loads(addnorm("evaluate", str(folder), "--split", split))
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seed": seed,
        "train_minutes": round(minutes, 1),
        "processor_minutes": round(processor / 60, 1),
        **scores,
    }


def main() -> None:
    """Train, score, and write `results/<recipe>.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--split", default="test", choices=["valid", "test"])
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmarks"))
    asked = parser.parse_args()
    name = asked.recipe.stem
    folders = [asked.runs / f"{name}-{seed}" for seed in asked.seeds]
    rows = [
        train_and_score(asked.recipe, seed, asked.split, folder)
        for seed, folder in zip(asked.seeds, folders, strict=True)
    ]
    figures = [k for k, v in rows[0].items() if isinstance(v, float)]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "machine": f"{torch.get_num_threads()} cores, {platform.machine()}, {processor_name()}",
        "versions": {"addnorm": __version__, "torch": torch.__version__},
        "split": asked.split,
        "seeds": rows,
        "mean": {k: statistics.mean(row[k] for row in rows) for k in figures},
        "data": str(read_settings(folders[0])[0].data.kind),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["mean"], indent=1))


def processor_name() -> str:
    """Return the name of the processor, if the system has it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    extra = " with AVX-512 and bf16" if "avx512_bf16" in flags else ""
    return (names[0] if names else platform.processor()) + extra


if __name__ == "__main__":
    main()
