"""The schema accepts and refuses what AddNorm does, and describes every field."""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.runs.validation import is_valid

from addnorm.runs.recipes.recipe import check_recipe, set_field
from addnorm.runs.recipes.schema import recipe_schema

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
SMALL = """
[data]
kind = "text"
train = "my.txt"

[tokenizer]
kind = "char"

[model]
kind = "decoder"
d_model = 32

[train]
steps = 10
"""

schema = cache(recipe_schema)


def accepts(tree: dict[str, Any]) -> bool:
    return is_valid(tree, schema(), schema())


def small(**fields: str) -> dict[str, Any]:
    """The small recipe with fields, whose names have `__` for a point, set to TOML values."""
    tree = tomllib.loads(SMALL)
    for name, value in fields.items():
        set_field(tree, name.replace("__", "."), value)
    return tree


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_is_valid(file: Path) -> None:
    assert accepts(tomllib.loads(file.read_text(encoding="utf-8")))


RIGHT = [
    {"model__norm": '"rmsnorm"'},
    {"model__norm": "{kind = 'rmsnorm', eps = 1e-5}"},
    {"model__attention": "{n_heads = 4}"},
    {"model__attention": "{n_heads = 4, pattern = {kind = 'window', size = 8}}"},
    {"model__position": "{kind = 'rotary', scaling = 'llama3'}"},
    {"model__head": "{tied = false}"},
    {"model__layer_pattern": "[{pattern = {kind = 'window', size = 8}}, {pattern = 'full'}]"},
    {"tokenizer": '"char"'},
    {"train__optimizer": "{kind = 'adamw', betas = [0.9, 0.95]}"},
    {"eval__decoding": '"greedy"'},
]
THEIRS = [
    {"model__norm": '"my_parts:DyTConfig"'},
    {"model__norm": "{kind = 'my_parts:DyTConfig', alpha = 1.0}"},
    {"import": '["my_parts.py"]'},
]
WRONG = [
    {"model__d_modl": "32"},
    {"model__d_model": "0"},
    {"model__d_model": "'wide'"},
    {"model__d_model": "true"},
    {"model__dropout": "1.0"},
    {"model__norm": '"rmsnrm"'},
    {"model__norm": "{eps = 1e-5}"},
    {"model__norm": "{kind = 'rmsnorm', bias = true}"},
    {"model__attention": "{kind = 'attention', n_head = 4}"},
    {"model__position": "{kind = 'rotary', scaling = 'linear'}"},
    {"model": '"decoder"'},
    {"train__optimizer": "{kind = 'adamw', betas = [0.9]}"},
    {"train__select": '"worst"'},
    {"evaluation__metric": '"bleu"'},
]


@pytest.mark.parametrize("fields", RIGHT, ids=str)
def test_what_addnorm_accepts_is_valid(fields: dict[str, str]) -> None:
    assert check_recipe(small(**fields), ".".join)
    assert accepts(small(**fields))


@pytest.mark.parametrize("fields", THEIRS, ids=str)
def test_parts_of_others_are_valid(fields: dict[str, str]) -> None:
    assert accepts(small(**fields))


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_what_addnorm_refuses_is_not_valid(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        check_recipe(small(**fields), ".".join)
    assert not accepts(small(**fields))


@pytest.mark.parametrize("table", ["data", "model", "train"])
def test_a_recipe_needs_its_tables(table: str) -> None:
    tree = small()
    del tree[table]
    assert not accepts(tree)


def test_training_from_a_folder_leaves_its_model_to_it() -> None:
    tree = small(train__start='"runs/old"')
    del tree["tokenizer"]
    tree["model"] = {"attention": {"n_kv_heads": 2}}
    assert accepts(tree)
    del tree["model"]
    assert accepts(tree)


def test_every_field_says_what_it_means() -> None:
    made = schema()
    tables = {**made["$defs"], "Recipe": made}
    silent = [
        f"{table}.{name}"
        for table, one in tables.items()
        for name, field in one["properties"].items()
        if name != "kind" and not field.get("description")
    ]
    assert silent == []


def test_nothing_is_null_for_toml_has_none() -> None:
    assert {"type": "null"} not in [*dictionaries(schema())]


def dictionaries(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for one in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from dictionaries(one)
