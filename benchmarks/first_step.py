"""Time `addnorm train` from its start to the end of its first step, each time in a fresh process.

    python benchmarks/first_step.py RECIPE ... --rounds 3

Texts are read, counted and encoded each time; the choices between kernels are those that the
machine has kept. Figures go to `results/first_step.json`.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from timing import write_results

from addnorm.files import cache_folder

STOPS = """
import os, sys
from addnorm.cli.main import main
from addnorm.training.trainer import Trainer
update = Trainer.update
def first(self, *args, **options):
    update(self, *args, **options)
    os._exit(0)
Trainer.update = first
sys.argv = ["addnorm", "train", *sys.argv[1:]]
main()
"""


def seconds(recipe: Path) -> float:
    """Return the seconds of one start."""
    with TemporaryDirectory() as folder:
        for entry in cache_folder().glob("*"):
            if entry.name != "data":
                (Path(folder) / entry.name).symlink_to(entry)
        command = [sys.executable, "-c", STOPS, recipe.name, "--out", str(Path(folder) / "run")]
        environment = os.environ | {"ADDNORM_CACHE": folder}
        begun = time.perf_counter()
        subprocess.run(
            command, cwd=recipe.parent, env=environment, check=True, stderr=subprocess.DEVNULL
        )
        return time.perf_counter() - begun


def main() -> None:
    """Print and write the median seconds of each recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds = [[seconds(recipe) for recipe in given.recipes] for _ in range(given.rounds)]
    figures = {
        recipe.name: {
            "seconds": round(median(taken), 2),
            "all": [round(x, 2) for x in taken],
            "recipe": recipe.read_text("utf-8"),
        }
        for recipe, taken in zip(given.recipes, zip(*rounds, strict=True), strict=True)
    }
    write_results("first_step", {"rounds": given.rounds, "recipes": figures})


if __name__ == "__main__":
    main()
