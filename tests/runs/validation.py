"""A minimal JSON schema validator, covering what the recipe schema uses."""

import re
from collections.abc import Callable, Mapping
from typing import Any

TYPES = {
    "object": Mapping,
    "array": (list, tuple),
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}

Schema = Mapping[str, Any]

CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "const": lambda value, wanted: value == wanted,
    "enum": lambda value, wanted: value in wanted,
    "pattern": lambda value, wanted: not isinstance(value, str) or bool(re.search(wanted, value)),
    "minimum": lambda value, least: value >= least,
    "maximum": lambda value, most: value <= most,
    "exclusiveMinimum": lambda value, least: value > least,
    "exclusiveMaximum": lambda value, most: value < most,
    "minItems": lambda value, least: len(value) >= least,
    "maxItems": lambda value, most: len(value) <= most,
    "required": lambda value, names: not isinstance(value, Mapping) or {*names} <= {*value},
}
SAID = {"$schema", "$defs", "title", "description", "default", "format"}
"""What a schema says to people alone."""


def is_valid(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether a value is as the schema says. Raises `KeyError` for what is not known here."""
    if not has_type(value, schema.get("type")):
        return False
    return all(
        rule in SAID | {"type", "then", "else"} or follows(value, rule, schema, root)
        for rule in schema
    )


def has_type(value: Any, name: str | None) -> bool:
    if name is None:
        return True
    return isinstance(value, TYPES[name]) and (name == "boolean") >= isinstance(value, bool)


def follows(value: Any, rule: str, schema: Schema, root: Schema) -> bool:
    wanted = schema[rule]
    match rule:
        case "$ref":
            return is_valid(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "anyOf":
            return any(is_valid(value, one, root) for one in wanted)
        case "if":
            then = "then" if is_valid(value, wanted, root) else "else"
            return is_valid(value, schema[then], root)
        case "properties":
            return not isinstance(value, Mapping) or all(
                is_valid(value[name], one, root) for name, one in wanted.items() if name in value
            )
        case "additionalProperties":
            assert wanted is False
            return {*value} <= {*schema["properties"]}
        case "items":
            return all(is_valid(one, wanted, root) for one in value)
        case "prefixItems":
            return all(is_valid(*both, root) for both in zip(value, wanted, strict=False))
        case _:
            return CHECKS[rule](value, wanted)
