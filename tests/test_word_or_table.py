"""A word or a table: each is checked by its own rules, written again, and in the schema."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import TypeAdapter

from addnorm.config import ConfigError, config
from addnorm.word_or_table import WordOrTable


@config
class Sized:
    """A table."""

    size: int = 1


@config
class Outer:
    """A field of either form."""

    pooling: Annotated[Literal["mean", "max"] | Sized, WordOrTable()] = "mean"


@pytest.mark.parametrize("value", ["max", {"size": 3}])
def test_both_forms_are_read_and_written(value: Any) -> None:
    outer = Outer(pooling=value)
    assert outer.pooling == (value if isinstance(value, str) else Sized(**value))
    adapter = TypeAdapter(Outer)
    assert adapter.dump_python(outer, mode="json") == {"pooling": value}
    assert adapter.validate_python({"pooling": value}) == outer
    assert Outer(pooling=outer.pooling) == outer


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
        Outer(pooling=value)
    assert message in str(caught.value)


def test_the_schema_has_both_forms() -> None:
    words, table = TypeAdapter(Outer).json_schema()["properties"]["pooling"]["anyOf"]
    assert words == {"enum": ["mean", "max"], "type": "string"}
    assert table["$ref"].endswith("Sized")
