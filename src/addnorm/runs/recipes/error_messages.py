"""Turning pydantic's errors about a recipe into readable messages."""

import re
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from addnorm.config import classes_in, field_meant, hints_of, problem_of
from addnorm.errors import choices, nearest, some_of
from addnorm.parts import chooses, installed_parts, kind_of

Location = tuple[int | str, ...]
"""pydantic's location of an error: keys, interspersed with the kinds of tagged unions."""

Config = Any
"""A configuration class."""


def walk(root: Config, loc: Location) -> tuple[list[str], tuple[Config, ...]]:
    """The keys of a location as written in the recipe, and the classes that may be there."""
    path: list[str] = []
    here: tuple[Config, ...] = (root,)
    has_kinds, annotation = False, None
    for key in loc:
        if isinstance(key, int):  # a list index: the possible classes stay the same
            path.append(str(key))
            continue
        chosen = tuple(c for c in here if has_kinds and kind_of(c) == key)
        if not here and annotation is not None and not _has_keys(annotation):
            continue  # the type of a plain union that was tried, such as `bool`
        if not chosen:
            path.append(key)
            annotation = hints_of(here[0]).get(key) if here else None
            here, has_kinds = classes_in(annotation), chooses(annotation)
        else:
            here, has_kinds = chosen, False
    return path, here


def _has_keys(annotation: Any) -> bool:
    """Whether an annotation allows a dictionary, whose keys are part of the recipe."""
    return get_origin(annotation) is dict or any(map(_has_keys, get_args(annotation)))


def written_path(root: Config, error: ErrorDetails) -> list[str]:
    """The path of the error as written in the recipe."""
    path, _ = walk(root, error["loc"])
    return [*path, "kind"] if error["type"] == "union_tag_invalid" else path


NO_SUCH_THING = {
    "model_attributes_type": "table",
    "dataclass_type": "table",
    "path_type": "path: give a string",
    "tuple_type": "list: give several in brackets",
    "list_type": "list: give several in brackets",
}
"""The expected type for each kind of type error."""


def explain(root: Config, error: ErrorDetails) -> str:
    """Explain an error in one sentence: what is wrong, and what would be valid."""
    path, here = walk(root, error["loc"])
    name, context = ".".join(path), error.get("ctx", {})
    given = _short(error["input"])
    match error["type"]:
        case "unexpected_keyword_argument":
            _, around = walk(root, error["loc"][:-1])
            return f"{name} is not a field.{field_meant(around[0], path[-1])}"
        case "union_tag_invalid":
            tag = str(context["tag"])
            valid = _kinds(here)
            near = nearest(tag, [*valid, *installed_parts()])
            return f"{name}.kind = {_short(tag)} does not exist.{near} Valid: {some_of(valid)}."
        case "union_tag_not_found":
            return f"{name}.kind is missing.{choices('', _kinds(here))}"
        case kind if kind in NO_SUCH_THING:
            return f"{name} = {given} is not a {NO_SUCH_THING[kind]}."
        case "missing":
            return f"{name} is missing."
        case "value_error":
            return f"{name}: {context['error']}"
        case _:
            return _wrong_value(root, error, name)


def _wrong_value(root: Config, error: ErrorDetails, name: str) -> str:
    """Explain that a value is not among the words of its field, or is out of range."""
    annotation, given = _annotation_of(root, error["loc"]), _short(error["input"])
    valid = _words(annotation)
    if error["type"] == "literal_error" and not valid:
        valid = re.findall(r"'([^']*)'", str(error.get("ctx", {})["expected"]))
    if valid:
        return f"{name} = {given} does not exist.{choices(str(error['input']), valid)}"
    return f"{name} = {given}: {problem_of(error, annotation)}."


def _annotation_of(root: Config, loc: Location) -> Any:
    """The annotation of the field at a location; None if unknown.

    The location of a plain union ends with the type that was tried.
    """
    for n in range(len(loc), max(len(loc) - 2, 0), -1):
        _, around = walk(root, loc[: n - 1]) if n > 1 else ([], (root,))
        annotation = hints_of(around[0]).get(str(loc[n - 1])) if around else None
        if annotation is not None:
            return annotation
    return None


def _words(annotation: Any) -> list[str]:
    """The words allowed by a union of booleans and words; none for other annotations."""
    members = get_args(annotation)
    if bool not in members or not all(m is bool or get_origin(m) is Literal for m in members):
        return []
    return ["true", "false", *(str(word) for m in members for word in get_args(m))]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _kinds(classes: tuple[Config, ...]) -> list[str]:
    return [kind_of(c) for c in classes]
