"""A training of a model that is large beside all else, and how much memory it took; a script.

`torchrun --nproc-per-node N -m tests.training.parallel.peaks FOLDER PLAN` writes the most bytes
that each process had more than before, to `FOLDER/rank0` and so on.
"""

import resource
import sys
from pathlib import Path

import torch
from rich.console import Console
from tests.runs.tiny import write_recipe

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.train_run import train_run
from addnorm.training.parallel import plan, processes

LARGE = {
    "model.d_model": "640",
    "model.n_layers": "8",
    "model.feedforward.d_ff": "2560",
    "train.steps": "2",
    "train.validate_every": "1",
    "train.select": "best",
}


def main(folder: Path, split: str) -> None:
    """Train, and write the peak of this process."""
    here = plan.launched()
    own = folder / f"files{here.rank}"
    own.mkdir()
    n = str(here.processes)
    fields = {"parallel.data": n, "parallel.shard": "true"} if split == "shard" else {}
    fields = fields or {f"parallel.{split}": n}
    recipe = read_recipe(write_recipe(own, "language"), {**LARGE, **fields})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train_run(recipe, folder / "run", resume=False, console=Console(quiet=True))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (folder / f"rank{here.rank}").write_text(str(1024 * (after - before)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert processes
    main(Path(sys.argv[1]), sys.argv[2])
