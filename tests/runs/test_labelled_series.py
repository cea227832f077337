"""Runs on whole series: their class, and a number of each, learned and evaluated."""

import math
from pathlib import Path

import numpy as np
import pytest
from tests.runs.tiny import quiet

from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.recipe import read_recipe
from addnorm.runs.training import train_run

RECIPE = """
[data]
kind = "labelled_series"
train = "waves.csv"
test = "waves.csv"
label_column = "class"
columns = ["value"]
valid_fraction = 0.2

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = { kind = "series", patch = 4 }
position = { kind = "learned" }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", d_ff = 32 }
head = { kind = "classification", pooling = "mean" }
dropout = 0.0

[train]
steps = 60
batching = { kind = "series", size = 16 }
lr = 1e-2
"""


def write(folder: Path, recipe: str) -> Path:
    rng = np.random.default_rng(0)
    lines = ["id,value,class,height"]
    for n in range(40):
        name, period = ("fast", 4) if n % 2 else ("slow", 12)
        height = 0.5 + (n % 5) / 4
        for i in range(24 + n % 7):
            value = height * math.sin(2 * math.pi * (i + n) / period) + rng.normal(0, 0.05)
            lines.append(f"{n},{value:.5f},{name},{height}")
    (folder / "waves.csv").write_text("\n".join(lines) + "\n")
    file = folder / "waves.toml"
    file.write_text(recipe.replace('series"\ntrain', f'series"\nroot = "{folder}"\ntrain', 1))
    return file


@pytest.mark.long
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_learns_and_is_evaluated(task: str, tmp_path: Path) -> None:
    recipe = RECIPE
    if task == "regression":
        recipe = recipe.replace('label_column = "class"', 'value_column = "height"')
        recipe = recipe.replace('pooling = "mean"', 'problem = "regression"')
        recipe = recipe.replace("steps = 60", "steps = 150")
    run = train_run(
        read_recipe(write(tmp_path, recipe)), tmp_path / "run", resume=True, console=quiet()
    )
    scores = evaluation_of(run, "test").scores
    assert scores["examples"] == 40
    assert run.task == task
    assert scores["accuracy" if task == "classification" else "r2"] > (
        90 if task == "classification" else 0.5
    )
