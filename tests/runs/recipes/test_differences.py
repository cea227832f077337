"""The fields in which two recipes differ."""

from pathlib import Path

from tests.runs.tiny import write_recipe

from addnorm.runs.recipes.differences import differences
from addnorm.runs.recipes.recipe import read_recipe


def test_differences_are_named_by_field(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "translation")
    old = read_recipe(file)
    new = read_recipe(file, {"model.d_model": "32", "model.position": '{kind = "rotary"}'})
    assert differences(old, old) == {}
    found = differences(old, new)
    assert found["model.d_model"] == (16, 32)
    assert found["model.position.kind"] == ("sinusoidal", "rotary")
    new = read_recipe(file, {"train.optimizer": '{kind = "muon"}'})
    found |= differences(old, new)
    assert found["train.optimizer.kind"] == ("adamw", "muon")
    assert found["train.optimizer.adamw.kind"] == (None, "adamw")
