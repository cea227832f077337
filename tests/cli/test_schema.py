"""The command prints only JSON."""

import json
from collections.abc import Callable

from addnorm.runs.recipes.schema import recipe_schema

Command = Callable[..., tuple[int, str, str]]


def test_the_schema_is_printed(addnorm: Command) -> None:
    code, out, err = addnorm("schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == recipe_schema()
    assert "ε" in out
