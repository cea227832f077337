"""Shared by the scripts of this folder: times of functions in turn, and a file of figures."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from addnorm.machine import processor

Name = TypeVar("Name")
RESULTS = Path(__file__).parent / "results"


def seconds_in_turn(
    works: Mapping[Name, Callable[[], object]], rounds: int, *, warm_up: int = 1
) -> dict[Name, list[float]]:
    """Return the seconds of each function in each round, run in turn after rounds of warm-up."""
    times: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(warm_up + rounds):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begun)
    return {name: seconds[warm_up:] for name, seconds in times.items()}


def milliseconds(seconds: list[float], digits: int = 2) -> float:
    """Return the median of some seconds in milliseconds."""
    return round(1e3 * median(seconds), digits)


def write_results(name: str, figures: Mapping[str, object]) -> None:
    """Print figures, and write them with the machine to `results/NAME.json`."""
    facts = {
        "command": f"python benchmarks/{name}.py",
        "date": date.today().isoformat(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **figures,
    }
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
