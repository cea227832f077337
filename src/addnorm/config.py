"""The `config` decorator: frozen, keyword-only dataclasses with validation."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    PydanticKnownError,
    PydanticUndefined,
    core_schema,
)
from pydantic_core.core_schema import ErrorType

from addnorm.arguments import AsWritten
from addnorm.errors import InputError, choices, closest
from addnorm.notebooks import html_table

T = TypeVar("T")

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A number in [0, 1): a dropout rate, a smoothing mass, a fraction of a split."""

_OF_PYDANTIC = frozenset(get_args(ErrorType))
"""pydantic's built-in error types."""


class ConfigError(InputError, ValidationError):  # pyright: ignore[reportGeneralTypeIssues]
    """An invalid configuration, explained in one sentence.

    Like every user error it is an `InputError`; it is also a pydantic `ValidationError`, with all
    errors in `errors()`.
    """

    @classmethod
    def about(cls, config: type, error: ValidationError) -> "ConfigError":
        """Convert a `ValidationError`; its first error becomes the sentence."""
        details = error.errors(include_url=False)
        made = cls.from_exception_data(config.__name__, [*map(_raised_again, details)])
        # Report wrong fields before missing ones, which may only be misspelt.
        made.sentence = sentence(
            config, min(details, key=lambda e: e["type"].startswith("missing"))
        )
        return made

    sentence: str = ""

    def __str__(self) -> str:
        return self.sentence or super().__str__()

    __repr__ = __str__


def _table_of(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


WORD = BeforeValidator(_table_of)
"""For unions with kinds: a bare word is the kind with default settings."""


SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only pydantic dataclass that rejects unknown fields.

    For an invalid value or an unknown field, its constructor raises `ConfigError`, which is both an
    `InputError` and a `ValidationError`.
    """
    made: Any = dataclass(frozen=True, kw_only=True, config=SETTINGS)(cls)
    made.__init__ = _in_one_sentence(made.__init__)
    made._repr_html_ = _as_html
    made.__signature__ = _SourceSignature()
    return made


class _SourceSignature:
    """The signature of a configuration as in its source: `norm: NormConfig = LayerNormConfig()`.

    Without it, help and notebooks show the whole union behind every name.
    """

    def __get__(self, _: object, cls: type) -> inspect.Signature:
        return _source_signature(cls)


@cache
def _source_signature(cls: type) -> inspect.Signature:
    sources = source_fields(cls)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default_of(field),
            annotation=AsWritten(sources[field.name].annotation),
        )
        for field in fields(cls)  # pyright: ignore[reportArgumentType]
        if field.name in sources
    ]
    return inspect.Signature(parameters)


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    """The default of a field as written in source; pydantic may keep it in its own field."""
    default = field.default
    if isinstance(default, FieldInfo):
        default = default.get_default(call_default_factory=True)
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    missing = default is dataclasses.MISSING or default is PydanticUndefined
    if missing:
        return inspect.Parameter.empty
    return AsWritten(_brief(default)) if is_dataclass(default) else default


def _as_html(self: Any) -> str:
    """The fields of a configuration; of nested parts only those that differ from defaults."""
    rows = {field.name: _brief(getattr(self, field.name)) for field in fields(self)}
    return html_table(type(self).__name__, rows)


def _brief(value: Any) -> str:
    if not is_dataclass(value):
        return repr(value)
    changed = [
        f"{field.name}={_brief(given)}"
        for field in fields(value)
        if (given := getattr(value, field.name)) != field.default
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def _in_one_sentence(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `init` to raise pydantic's errors as `ConfigError`."""

    @wraps(init)
    def __init__(self: Any, /, *args: Any, **values: Any) -> None:
        __tracebackhide__ = True
        try:
            init(self, *args, **values)
        except ConfigError:
            raise
        except ValidationError as error:
            raise ConfigError.about(type(self), error) from error

    return __init__


@dataclasses.dataclass(frozen=True)
class SourceField:
    """A field as written in source: its type, its default, and the string below it."""

    annotation: str
    default: str | None
    meaning: str


def source_fields(config: type) -> dict[str, SourceField]:
    """The fields of a configuration as written in source, those of base classes first."""
    result: dict[str, SourceField] = {}
    for cls in [cls for cls in reversed(config.__mro__) if is_dataclass(cls)]:
        [body] = ast.parse(dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise([*body.body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign):
                default = None if field.value is None else ast.unparse(field.value)
                result[ast.unparse(field.target)] = SourceField(
                    ast.unparse(field.annotation), default, _text_of(below)
                )
    return result


def _text_of(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return ""


def meanings(config: type) -> dict[str, str]:
    """The descriptions of a configuration's fields: the strings below them."""
    return {name: field.meaning for name, field in source_fields(config).items() if field.meaning}


def sentence(config: type, error: ErrorDetails) -> str:
    """Explain an error in `config`: what is wrong, where, and the nearest valid value."""
    loc, context = error["loc"], error.get("ctx", {})
    path, here = _walk(config, loc)
    name, given = ".".join(path), _short(error["input"])
    where = config.__name__
    match error["type"]:
        case "unexpected_keyword_argument":
            _, around = _walk(config, loc[:-1])
            return f"{where}: {name} is not a field.{field_meant(around[0], path[-1])}"
        case "union_tag_invalid" | "union_tag_not_found" | "literal_error":
            return f"{where}: {name} = {_not_among(error, here)}"
        case "missing" | "missing_keyword_only_argument" | "missing_argument":
            return f"{where}: {name} is missing."
        case "value_error":
            return f"{where}: {name + ': ' if name else ''}{context['error']}"
        case "unexpected_positional_argument":
            return f"{where} takes names and values only, such as {_example(config)}."
        case _:
            annotation = _annotation_at(config, loc)
            return f"{where}: {name} = {given}: {problem_of(error, annotation)}."


def _not_among(error: ErrorDetails, here: tuple[Any, ...]) -> str:
    """Explain that a word, or the kind of a part that may be one of `here`, is not a valid one."""
    context = error.get("ctx", {})
    if error["type"] == "union_tag_not_found":
        kinds = [str(getattr(part, "kind", part.__name__)) for part in here]
        return f"{_short(error['input'])} has no 'kind'.{choices('', kinds)}"
    word = context.get("tag", error["input"])
    valid = _quoted(context.get("expected_tags", context.get("expected")))
    return f"{_short(word)} does not exist.{choices(str(word), valid)}"


_PLAIN = (
    ("Input should", "must"),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    ("a valid integer, unable to parse string as an integer", "an integer"),
    ("a valid number, unable to parse string as a number", "a number"),
    ("a valid integer", "an integer"),
    ("a valid boolean, unable to interpret input", "true or false"),
    ("a valid boolean", "true or false"),
    ("String should have", "must have"),
    ("a valid", "a"),
)
"""Phrases of pydantic's messages, and ours in their place."""

_INSTEAD = {
    "dataclass_type": "must be a configuration or a dictionary of its fields",
    "model_attributes_type": "must be a configuration, its kind or a dictionary of its fields",
}
"""Our words for errors whose own speak of pydantic."""

_LIMITS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


def problem_of(error: ErrorDetails, annotation: object = None) -> str:
    """The problem of a value, without its name: `must be greater than 0 and at most 1`.

    `annotation` is that of the field, for both ends of the range that it allows.
    """
    words = _INSTEAD.get(error["type"], error["msg"])
    if error["type"] == "value_error":
        return words.removeprefix("Value error, ")
    for theirs, ours in _PLAIN:
        words = words.replace(theirs, ours)
    if "than" in error["type"] or error["type"] == "finite_number":
        limits = [f"{_LIMITS[name]} {_plain(value)}" for name, value in _limits(annotation)]
        number = "a finite number" if error["type"] == "finite_number" else ""
        words = f"must be {number}" if number else words
        if limits:
            words = f"must be {number} {' and '.join(limits)}".replace("  ", " ")
    return words[:1].lower() + words[1:]


def _plain(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def _limits(annotation: Any) -> Iterator[tuple[str, float]]:
    """The bounds that an annotation sets for a number, such as `("gt", 0)`."""
    for constraint in getattr(annotation, "__metadata__", ()):
        for limit in getattr(constraint, "metadata", [constraint]):
            yield from ((name, getattr(limit, name)) for name in _LIMITS if hasattr(limit, name))
    for inner in get_args(annotation):
        yield from _limits(inner) if not isinstance(inner, str | int | float) else ()


def _annotation_at(config: type, loc: tuple[int | str, ...]) -> Any:
    """The annotation of the field at a location; None if unknown."""
    _, around = _walk(config, loc[:-1])
    return hints_of(around[0]).get(str(loc[-1])) if loc and around else None


def _walk(config: type, loc: tuple[int | str, ...]) -> tuple[list[str], tuple[Any, ...]]:
    """The keys of a location as a person writes them, and the classes that may be there."""
    path: list[str] = []
    here: tuple[Any, ...] = (config,)
    for key in loc:
        if isinstance(key, int):  # a list index: the possible classes stay the same
            path.append(str(key))
        elif chosen := tuple(c for c in here if path and getattr(c, "kind", "") == key):
            here = chosen
        elif here or not _TYPE.match(key):
            path.append(key)
            here = classes_in(hints_of(here[0]).get(key)) if here else ()
    return path, here


_TYPE = re.compile(r"(int|float|bool|str|literal\[.*|constrained-.*)$")
"""How pydantic names the types of a plain union that it tried, after the field."""


def hints_of(config: Any) -> dict[str, Any]:
    """The annotations of a configuration's fields."""
    return get_type_hints(config, include_extras=True)


def classes_in(annotation: Any) -> tuple[Any, ...]:
    """The built-in configuration classes that an annotation allows, in order."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return (annotation,)
    return tuple(cls for inner in get_args(annotation) for cls in classes_in(inner))


def field_meant(configuration: Any, name: str) -> str:
    """A hint at the field of that name in a part, or at the field with the nearest name."""
    below = {
        field.name: f"{part}.{field.name}"
        for part, annotation in reversed(hints_of(configuration).items())
        for config in reversed(classes_in(annotation))
        for field in fields(config)
    }
    if name in below:
        return f" Did you mean {below[name]!r}?"
    valid = [field.name for field in fields(configuration)]
    near = None if closest(name, valid) else closest(name, below)
    hint = "" if near is None else f" Did you mean {below[near]!r}?"
    return f"{hint}{choices(name, valid)}"


def _raised_again(error: ErrorDetails) -> InitErrorDetails:
    """Convert the details of an error so that it can be raised again."""
    again: Any = {"type": error["type"], "loc": error["loc"], "input": error["input"]}
    if error["type"] in _OF_PYDANTIC:
        again["ctx"] = error.get("ctx", {})
    else:
        text = error["msg"].replace("{", "(").replace("}", ")")
        again["type"] = PydanticCustomError("value_error", text)  # pyright: ignore[reportArgumentType]
    return again


def _quoted(words: Any) -> list[str]:
    return re.findall(r"'([^']*)'", str(words))


def _example(config: type) -> str:
    names = [field.name for field in fields(config) if field.name != "kind"]  # pyright: ignore[reportArgumentType]
    return f"{config.__name__}({names[0]}=...)" if names else f"{config.__name__}()"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def first_problem(error: ValidationError, whole: str = "the file") -> str:
    """The first problem in a file, after the name of its field, or after `whole` without one."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or whole
    return f"{where}: {problem_of(first)}"


@dataclasses.dataclass(frozen=True)
class WordOrTable:
    """The annotation of a field that takes a word or a table of settings.

    It stands in `Annotated[Literal["a", "b"] | SettingsConfig, WordOrTable()]`. A string is checked
    against the words and anything else against the configuration, so that an error is about the one
    that was meant. Of several configurations the kind alone is a word too; `default` is that of a
    table that names none.
    """

    default: str | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Choose between word and table by the type of the value."""
        literal, configuration = get_args(source)
        words = get_args(literal)
        kinds = [f.default for f in _kinds(configuration)]

        def validate(value: Any, table: Callable[[Any], Any]) -> Any:
            if isinstance(value, dict) and self.default is not None:
                return table({"kind": self.default, **value})
            if isinstance(value, str) and value in kinds:
                return table({"kind": value})
            if not isinstance(value, str):
                return table(value)
            if value not in words:
                expected = ", ".join(map(repr, (*words, *kinds)))
                raise PydanticKnownError("literal_error", {"expected": expected})
            return value

        def serialize(value: Any, table: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, str) else table(value)

        table = handler.generate_schema(configuration)
        written = core_schema.wrap_serializer_function_ser_schema(serialize, schema=table)
        return core_schema.no_info_wrap_validator_function(
            validate, table, serialization=written, metadata={"words": [*words, *kinds]}
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of the words, or of the table."""
        words = schema.get("metadata", {})["words"]
        return {"anyOf": [{"enum": words, "type": "string"}, handler(schema)]}


class OneOrMany:
    """An annotation for one part or several: `Annotated[tuple[Part, ...], OneOrMany()]`.

    A part that is not in a list counts as a list of one, and nothing as an empty one.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Convert a single part to a list."""

        def listed(value: Any) -> Any:
            if value is None:
                return ()
            return value if isinstance(value, list | tuple) else (value,)

        return core_schema.no_info_before_validator_function(listed, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of a part, or of a list of parts."""
        many = handler(schema)
        return {"anyOf": [many["items"], many]}


def _kinds(union: Any) -> Iterator[Any]:
    """The field `kind` of each configuration in an annotated union; empty for a single one."""
    for annotated in get_args(union)[:1]:
        for part in get_args(annotated):
            yield from (field for field in fields(part) if field.name == "kind")
