"""Runs on whole series: their class, and a number of each, learned and evaluated."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs.tiny import quiet

from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluation_of
from addnorm.runs.inference.series import answer_series
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

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


def answers_new_files(run: Run, folder: Path) -> None:
    """A table with its columns in another order and without answers has the same ones."""
    rows = [line.split(",") for line in (folder / "waves.csv").read_text().splitlines()]
    new = ["value,more,id", *(f"{value},9,{name}" for name, value, *_ in rows[1:])]
    (folder / "new.csv").write_text("\n".join(new) + "\n")
    found = [*answer_series(run, [folder / "waves.csv"], batch_size=7)]
    again = [*answer_series(Run.open(folder / "run"), [folder / "new.csv"])]
    assert [one.series for one in found] == [one.series for one in again] == [*map(str, range(40))]
    for one, other in zip(found, again, strict=True):
        said, same = (
            a.numbers if a.classified is None else a.classified.probabilities for a in (one, other)
        )
        assert same == pytest.approx(said, abs=1e-5)
        values = [float(row[1]) for row in rows[1:] if row[0] == one.series]
        with torch.no_grad():
            alone = run.model(torch.tensor([[values]]))[0]
        shares = alone if one.classified is None else alone.softmax(-1)
        assert [*said.values()] == pytest.approx(shares.tolist(), abs=1e-5)
    right = [name for name in ("fast", "slow") if run.task == "classification"]
    if right:
        wrong = [one for one in found if one.classified.label != right[int(one.series) % 2 == 0]]  # type: ignore[union-attr]
        assert len(wrong) < 4
    new[5] = ",9,0"
    (folder / "hole.csv").write_text("\n".join(new) + "\n")
    with pytest.raises(InputError, match=r"hole.csv:6: "):
        [*answer_series(run, [folder / "hole.csv"])]
    skipped: list[InputError] = []
    files = [folder / "hole.csv", folder / "nowhere.csv", folder / "new.csv"]
    rest = [*answer_series(run, files, skipped=skipped.append)]
    assert [str(error).partition(" ")[0] for error in skipped] == [
        f"{folder / 'hole.csv'}:6:", f"{folder / 'nowhere.csv'}",
    ]  # fmt: skip
    assert [one.series for one in rest] == [*map(str, range(40))]
    copy = run.save(folder / f"copy-{run.task}")
    assert [one.series for one in answer_series(copy, [folder / "new.csv"])][-1] == "39"


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
    answers_new_files(run, tmp_path)
