"""Any value in any recipe field gives either a recipe or a single error message."""

import copy
import tomllib
from contextlib import suppress
from typing import Any

import pytest
from tests.contracts import members
from tests.runs.tiny import RECIPES

from addnorm.config import classes_in
from addnorm.errors import InputError
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.norms import LayerNormConfig, NormConfig
from addnorm.runs.recipes import error_messages as mistakes
from addnorm.runs.recipes.error_messages import walk
from addnorm.runs.recipes.recipe import Recipe, check_recipe

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    "",
    "x",
    [],
    ["x", 1],
    {},
    {"kind": "x"},
    {"y": 1},
]


def fields_in(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in tree.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += fields_in(value, (*path, key))
    return found


@pytest.mark.parametrize("task", RECIPES)
def test_no_value_of_any_field_is_a_fault_of_ours(task: str) -> None:
    tree = tomllib.loads(RECIPES[task])
    tree["model"]["attention"]["qk_norm"] = {"kind": "rmsnorm", "eps": 1e-6}
    tree["train"]["optimizer"] = {"kind": "muon", "adamw": {"weight_decay": 0.1}}
    places: list[list[str]] = []

    def place(path: list[str]) -> str:
        places.append(path)
        return "here"

    assert check_recipe(copy.deepcopy(tree), place).train.optimizer.kind == "muon"
    for path in fields_in(tree):
        for odd in ODD:
            changed = copy.deepcopy(tree)
            here = changed
            for key in path[:-1]:
                here = here[key]
            here[path[-1]] = odd
            places.clear()
            with suppress(InputError):
                check_recipe(changed, place)
            for where in places:  # the field, something within it, or what is around it
                shared = min(len(path), len(where))
                assert where[:shared] == list(path)[:shared] or len(where) < len(path)


def test_a_location_is_walked_without_the_kinds() -> None:
    path, classes = walk(Recipe, ("model", "decoder", "attention", "qk_norm", "rmsnorm", "eps"))
    assert path == ["model", "attention", "qk_norm", "eps"]
    assert classes == ()
    # A field may have the name of its kind.
    assert walk(Recipe, ("train", "batching", "tokens", "tokens"))[0] == [
        "train",
        "batching",
        "tokens",
    ]


def test_a_family_of_one_and_several_layers_are_walked_too() -> None:
    path, _ = walk(Recipe, ("model", "decoder", "attention", "attention", "output", "gated", "per"))
    assert path == ["model", "attention", "output", "per"]
    path, _ = walk(Recipe, ("model", "encoder", "embedding", "tokens", "norm", "rmsnorm", "eps"))
    assert path == ["model", "embedding", "norm", "eps"]
    loc = ("model", "decoder", "layer_pattern", 1, "pattern", "window", "size")
    assert walk(Recipe, loc)[0] == ["model", "layer_pattern", "1", "pattern", "size"]


def test_a_key_of_a_layer_is_compared_with_those_of_a_layer() -> None:
    tree = tomllib.loads(RECIPES["language"])
    tree["model"]["layer_pattern"] = [{}, {"fedforward": "mlp"}]
    with pytest.raises(InputError, match=r"layer_pattern\.1\.fedforward is .*'feedforward'\?"):
        check_recipe(tree, lambda path: "here")


def test_a_long_word_is_shortened() -> None:
    tree = tomllib.loads(RECIPES["language"])
    tree["model"]["norm"] = "To be, or not to be. " * 99
    with pytest.raises(InputError) as caught:
        check_recipe(tree, lambda path: "here")
    assert "…" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_name_of_an_installed_part_is_a_valid_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "installed_parts", lambda: {"singing_norm": None})
    tree = tomllib.loads(RECIPES["language"])
    tree["model"]["norm"] = "singing_nrom"
    with pytest.raises(InputError, match="Did you mean 'singing_norm'"):
        check_recipe(tree, lambda path: "here")


def test_the_classes_of_an_annotation() -> None:
    assert set(classes_in(NormConfig | None)) == members(NormConfig)
    assert LayerNormConfig in classes_in(MixerConfig | NormConfig)
    assert AttentionConfig in classes_in(MixerConfig | None)
    assert classes_in(int | None) == ()
