"""Every recipe with one line changed trains briefly on a slice of its data."""

import gzip
import json
from pathlib import Path

import pytest
from tests.contracts import combined
from tests.public_data import DATA
from tests.runs.tiny import quiet

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.train_run import train_run

ROOT = Path(__file__).parents[2]
SLICES = {
    "multi30k-en-de": ("multi30k/tok", 100),
    "shakespeare-char": ("tinyshakespeare", 400),
    "trec": ("text_classification", 200),
    "sst2": ("text_classification", 200),
    "wnut17": ("ner_wnut17", 30000),
}
"""The folder of each recipe's data, and how many lines of each file are enough."""

LEARNS_FROM_ALL = {"sst2", "trec", "wnut17"}
"""Recipes that hold nothing out for validation."""

CHANGES = {
    "position": '{ kind = "alibi" }',
    "norm": '{ kind = "batchnorm" }',
    "residual": '{ kind = "sandwich" }',
    "feedforward": '{ kind = "moe", n_experts = 3, expert = { kind = "mlp", d_ff = 32 } }',
    "attention": '{ kind = "recurrent", cell = "gru" }',
}


def sliced(name: str, folder: Path) -> Path:
    """The first lines of the recipe's data, under the same names."""
    where, n = SLICES[name]
    if not (DATA / where).is_dir():
        pytest.skip(f"no {where} in {DATA}; ADDNORM_DATA says where the data are")
    for file in (DATA / where).iterdir():
        if file.is_dir():
            continue
        packed = file.suffix == ".gz"
        data = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
        few = b"".join(data.splitlines(keepends=True)[:n])
        (folder / where).mkdir(parents=True, exist_ok=True)
        (folder / where / file.name).write_bytes(gzip.compress(few) if packed else few)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "field"),
    combined(SLICES, CHANGES),
)
def test_one_line_of_a_recipe_changes_a_part(name: str, field: str, tmp_path: Path) -> None:
    overrides = {
        f"model.{field}": CHANGES[field],
        "data.root": str(sliced(name, tmp_path)),
        "model.n_layers": "1",
        "train.save_every": "100",
        "train.average": "0",
        "eval.valid_examples": "2",
    }
    if name in LEARNS_FROM_ALL:
        overrides["data.valid_fraction"] = "0.1"
    recipe = (ROOT / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    few = "\n".join(
        "steps = 3" if line.startswith(("epochs =", "steps =")) else line
        for line in recipe.splitlines()
        if not line.startswith("select =")
    )
    file = tmp_path / "recipe.toml"
    file.write_text(few, encoding="utf-8")
    train_run(read_recipe(file, overrides), tmp_path / "run", resume=False, console=quiet())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 3
    assert all(0.0 < loss < 20.0 for loss in losses)
    assert any("valid_loss" in row for row in rows)
