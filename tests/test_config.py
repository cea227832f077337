"""Configurations are frozen, keyword-only, and refuse invalid values in one sentence."""

import inspect
import re
import sys
from dataclasses import FrozenInstanceError, replace
from importlib import import_module
from typing import Annotated, Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass

import addnorm as an
from addnorm.config import ConfigError, Probability, WordOrTable, config
from addnorm.errors import InputError


@config
class Drop:
    """An example."""

    p: Probability = 0.5


def test_it_is_frozen_and_keyword_only() -> None:
    drop = Drop(p=0.25)
    with pytest.raises(FrozenInstanceError):
        drop.p = 0.5  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises((TypeError, ValidationError)):
        Drop(0.25)  # pyright: ignore[reportCallIssue]


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="rate"):
        Drop(rate=0.5)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan"), "much"])
def test_impossible_values_are_refused(p: object) -> None:
    with pytest.raises(ValidationError):
        Drop(p=p)  # pyright: ignore[reportArgumentType]


def test_equal_values_are_equal_configurations() -> None:
    assert Drop(p=0.5) == Drop()
    assert hash(Drop(p=0.5)) == hash(Drop())


@config
class Outer:
    """One that holds another."""

    drop: Drop = Drop()
    mode: Literal["first", "last"] = "last"
    size: int
    several: tuple[Drop, ...] = ()

    def __post_init__(self) -> None:
        if self.size > 9:
            raise ValueError("size must be below 10")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"sise": 3},
            "Outer: sise is not a field. Did you mean 'size'? Valid: drop, mode, size, several.",
        ),
        ({}, "Outer: size is missing."),
        (
            {"size": 1, "mode": "lsat"},
            "Outer: mode = 'lsat' does not exist. Did you mean 'last'? Valid: first, last.",
        ),
        ({"size": 1, "drop": {"q": 1}}, "Outer: drop.q is not a field. Valid: p."),
        ({"size": 1, "several": [{"q": 1}]}, "Outer: several.0.q is not a field. Valid: p."),
        ({"size": 10}, "Outer: size must be below 10"),
        ({"size": 1, "drop": {"p": -1}}, "Outer: drop.p = -1: must be at least 0 and less than 1."),
        ({"size": []}, "Outer: size = []: must be an integer."),
    ],
)
def test_a_mistake_is_one_sentence_in_python(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Outer(**values)  # pyright: ignore[reportArgumentType]
    # A field that is missing may only be misspelt: what is there and wrong is said.
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_the_same_mistake_is_pydantics_too() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer(size="x", mode="y")  # pyright: ignore[reportArgumentType]
    assert [error["loc"] for error in caught.value.errors()] == [("mode",), ("size",)]
    with pytest.raises(InputError, match="takes names and values only, such as Drop"):
        Drop(0.25)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match=r"seize is not a field.* 'size'"):
        replace(Outer(size=1), seize=2)  # pyright: ignore[reportCallIssue]


def test_a_mistake_within_another_keeps_its_place() -> None:
    """One raised while pydantic validates something else stands where it was met there."""

    @config
    class Holder:
        outer: Outer

        def __post_init__(self) -> None:
            Drop(p=2.0)

    with pytest.raises(ConfigError) as caught:
        Holder(outer=Outer(size=1))
    assert caught.value.errors()[0]["loc"] == ("p",)
    with pytest.raises(ValidationError) as plain:
        TypeAdapter(Outer).validate_python({"size": "x"})
    assert not isinstance(plain.value, InputError)


@config
class Sized:
    """A table."""

    size: int = 1


@config
class WordOrSize:
    """A field of either form."""

    pooling: Annotated[Literal["mean", "max"] | Sized, WordOrTable()] = "mean"


@pytest.mark.parametrize("value", ["max", {"size": 3}])
def test_both_forms_are_read_and_written(value: Any) -> None:
    outer = WordOrSize(pooling=value)
    assert outer.pooling == (value if isinstance(value, str) else Sized(**value))
    adapter = TypeAdapter(WordOrSize)
    assert adapter.dump_python(outer, mode="json") == {"pooling": value}
    assert adapter.validate_python({"pooling": value}) == outer
    assert WordOrSize(pooling=outer.pooling) == outer


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("men", "pooling = 'men' does not exist. Did you mean 'mean'? Valid: mean, max."),
        ({"sise": 3}, "pooling.sise is not a field. Did you mean 'size'? Valid: size."),
        ({"size": "x"}, "pooling.size = 'x': must be an integer"),
    ],
)
def test_an_error_is_about_the_form_that_was_meant(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WordOrSize(pooling=value)
    assert message in str(caught.value)


def test_the_schema_has_both_forms() -> None:
    words, table = TypeAdapter(WordOrSize).json_schema()["properties"]["pooling"]["anyOf"]
    assert words == {"enum": ["mean", "max"], "type": "string"}
    assert table["$ref"].endswith("Sized")


def test_every_default_is_a_value_of_its_field() -> None:
    """A class takes its defaults as they are: nothing else looks at them."""
    import_module("addnorm.runs.recipes.recipe")
    configs = {
        value
        for name, module in [*sys.modules.items()]
        if name.startswith("addnorm.")
        for value in vars(module).values()
        if isinstance(value, type) and is_pydantic_dataclass(value)
    }
    n_defaults = 0
    for config_class in configs:
        for name, field in config_class.__pydantic_fields__.items():
            if field.is_required():
                continue
            default = field.get_default(call_default_factory=True, validated_data={})
            field_type: Any = Annotated[field.annotation, name, *field.metadata]
            valid = TypeAdapter(field_type).validate_python(default)
            assert valid == default, (config_class, name)
            n_defaults += 1
    assert n_defaults > 300


def test_signatures_are_those_of_the_source() -> None:
    shown = str(inspect.signature(an.DecoderConfig))
    assert shown.startswith("(*, d_model: PositiveInt = 512, ")
    assert "norm: NormConfig = LayerNormConfig(), " in shown
    assert "Annotated" not in shown
    assert "'" not in shown.replace("'xavier'", "").replace("'decoder'", "")
    assert str(inspect.signature(an.RMSNormConfig)).startswith("(*, kind: ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"embedding": {"scale": False}}, "embedding.scale = False does not exist"),
        ({"attention": {"pattern": {"kind": "window", "size": 0}}}, "attention.pattern.size = 0:"),
        ({"feedforward": {"activation": "gelu"}}, "'gelu'} has no 'kind'. Valid: mlp, gated"),
        ({"norm": 3}, "norm = 3: must be a configuration, its kind or a dictionary"),
        ({"cross_attention": 3}, "cross_attention = 3: must be a configuration or a dictionary"),
    ],
)
def test_errors_name_fields_as_they_are_written(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        an.DecoderConfig(**fields)
