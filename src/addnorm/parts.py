"""Parts: the built-in and custom configurations of which models and recipes consist.

A family of parts is a union of built-in configurations and a protocol that custom configurations
can implement. A value of a family can be written in four ways:

- an object: `RMSNormConfig(eps=1e-5)`, or an instance of your own frozen dataclass;
- a table with its kind: `{kind = "rmsnorm", eps = 1e-5}`;
- a word, the part with its defaults: `"rmsnorm"`;
- for your own part, `kind = "module:Class"`, or the name of an entry point in `addnorm.parts`.

Reading a file never imports anything: `module:Class` is looked up among the modules that are
imported already. A module is imported where a person names it: `--import`, `import = [...]` in a
recipe, or an `import` statement (`runs.recipes.custom_parts`).
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, get_args, runtime_checkable

from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema

from addnorm.config import classes_in, problem_of
from addnorm.errors import choices, nearest

ENTRY_POINTS = "addnorm.parts"
"""The entry-point group in which installed packages register their parts."""

FROM_FILE = {"from_file": True}
"""The validation context of untrusted files, for which entry points are not imported."""


@runtime_checkable
class HasConflicts(Protocol):
    """A configuration that can reject surroundings which its part does not support."""

    def conflict(self, around: Any) -> str | None:
        """The reason why the part conflicts with its surroundings; None if it does not.

        `around` is a `BuildContext` for positions, a `HeadShape` for attention cores, and the
        configuration that holds the part for all others.
        """
        ...


@runtime_checkable
class HasExamples(Protocol):
    """A configuration that provides examples of its variants, the default first."""

    @classmethod
    def examples(cls) -> Mapping[str, Any]:
        """Small instances by name."""
        ...


@dataclass(frozen=True)
class Family:
    """The annotation of a union of parts: `Annotated[A | B | NormPart, Family("norm", NormPart)]`.

    `protocol` is the interface of all members and custom parts, with the method `method`. `default`
    is the kind of a table that names none.
    """

    name: str
    protocol: type
    method: str = "build"
    default: str | None = None

    def __post_init__(self) -> None:
        _FAMILIES.append(self)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Validate built-in kinds as a tagged union, and custom parts by their classes."""
        kinds = {kind_of(member): member for member in classes_in(source)}
        choices = {kind: handler.generate_schema(member) for kind, member in kinds.items()}
        ours = core_schema.tagged_union_schema(choices, "kind", from_attributes=True)
        members = tuple(kinds.values())

        def validate(value: Any, ours: Callable[[Any], Any], info: Any) -> Any:
            if isinstance(value, type):
                name = value.__name__
                raise ValueError(f"{name} is a class: write {name}() for its defaults")
            if isinstance(value, str):
                value = {"kind": value}
            if isinstance(value, Mapping):
                value = {"kind": self.default, **value} if self.default else dict(value)
                kind = value.get("kind")
                if not isinstance(kind, str) or kind in kinds:
                    return ours(value)
                from_file = bool(info.context and "from_file" in info.context)
                part = self.find(kind, from_file=from_file)
                return ours(value) if part is None else construct(part, value, info.context)
            if type(value) in members or not _is_table(type(value)):
                return ours(value)
            self.check(type(value))
            return ours(value) if is_ours(type(value)) else value

        def serialize(value: Any, ours: Callable[[Any], Any]) -> Any:
            return ours(value) if type(value) in members else dump(value, taken=kinds)

        return core_schema.with_info_wrap_validator_function(
            validate,
            ours,
            serialization=core_schema.wrap_serializer_function_ser_schema(serialize, schema=ours),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Built-in parts, custom parts, and the default kind."""
        ours = handler(schema)
        names = [":", *(f"^{re.escape(name)}$" for name in installed_parts())]
        word = {"type": "string", "pattern": "|".join(names)}
        table = {"type": "object", "properties": {"kind": word}, "required": ["kind"]}
        default = ours["discriminator"]["mapping"].get(self.default)
        return {"anyOf": [ours, word, table, *([{"$ref": default}] if default else [])]}

    def find(self, kind: str, *, from_file: bool = False) -> type | None:
        """The configuration class that `kind` names; None for an unknown word.

        Raises `ValueError` if its module is not imported, has no such class, or the class is not a
        part of this family.
        """
        part = named(kind, from_file=from_file)
        if part is not None:
            self.check(part)
        return part

    def check(self, part: Any) -> None:
        """Raise `ValueError` unless `part` is a frozen configuration of this family."""
        name = getattr(part, "__qualname__", repr(part))
        if not isinstance(part, type) or not _is_frozen(part):
            raise ValueError(
                f"{name} is not a part: a part is a frozen dataclass with {self.method}()"
            )
        like, problem = self.likeness(part)
        others = {f.name: f.likeness(part)[0] for f in _FAMILIES if f.name != self.name}
        most = max(others.values(), default=0)
        if problem or most > like:
            fits = [other for other, match in others.items() if match == most > max(like, 0)]
            problem = problem or f"AddNorm calls {self._call(self.method)}"
            would = f". It would fit as {' or '.join(fits)}" if fits else ""
            raise ValueError(f"{name} does not fit as {self.name}: {problem}{would}")

    def likeness(self, part: Any) -> tuple[int, str]:
        """The number of arguments shared with the protocol; or -1, and the reason for it."""
        n_same = 0
        for method in (name for name in vars(self.protocol) if not name.startswith("_")):
            if not callable(getattr(part, method, None)):
                return -1, f"it has no method {method}()"
            theirs, ours = (
                inspect.signature(getattr(cls, method)) for cls in (part, self.protocol)
            )
            try:
                theirs.bind(*ours.parameters)
            except TypeError as error:
                return -1, f"AddNorm calls {self._call(method)}, and {error}"
            names = zip(theirs.parameters, ours.parameters, strict=False)
            n_same += sum(name == other != "self" for name, other in names)
        return n_same, ""

    def _call(self, method: str) -> str:
        _, *names = inspect.signature(getattr(self.protocol, method)).parameters
        return f"{method}({', '.join(names)})"


_FAMILIES: list[Family] = []
"""The families of the unions that are imported."""


def kind_of(part: Any) -> str:
    """The kind of a configuration or its class in a recipe: `rmsnorm`, `my_parts:DyT`."""
    cls = part if isinstance(part, type) else type(part)
    if is_ours(cls):
        return str({field.name: field.default for field in fields(cls)}.get("kind", cls.__name__))
    return next(
        (name for name, entry in _loaded_entry_points() if entry is cls),
        f"{cls.__module__}:{cls.__qualname__}",
    )


def is_ours(part: type | Callable[..., object]) -> bool:
    """Whether a class or a function is built-in."""
    return part.__module__.partition(".")[0] == "addnorm"


def members(family: Any) -> tuple[type, ...]:
    """The built-in configurations of a family, in the order of its union."""
    return classes_in(family)


def family_of(annotation: Any) -> Family | None:
    """The family in an annotation such as `NormConfig | None`, if any."""
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, Family):
            return item
    return next((family for inner in get_args(annotation) if (family := family_of(inner))), None)


def chooses(annotation: Any) -> bool:
    """Whether a field's `kind` selects among several classes or custom parts."""
    return len(classes_in(annotation)) > 1 or family_of(annotation) is not None


def examples(config: type) -> Mapping[str, Any]:
    """Examples of the variants of a part, the default first."""
    if isinstance(config, HasExamples):
        return config.examples()
    return {kind_of(config): config()}


def check_conflicts(parts: Any, around: Any) -> None:
    """Raise `ValueError` if a part is incompatible with its surroundings.

    `parts` is a list of configurations, or a configuration whose fields are checked.
    """
    values = parts if isinstance(parts, list) else [getattr(parts, f.name) for f in fields(parts)]
    for part in values:
        if isinstance(part, HasConflicts) and (reason := part.conflict(around)):
            raise ValueError(reason)


def construct(part: type, table: Mapping[str, Any], context: Any = None) -> Any:
    """Build a custom configuration from its table in a recipe, without its kind.

    `context` is the validation context, for nested parts. Raises `ValueError` for an unknown field
    or an invalid value.
    """
    given = {name: value for name, value in table.items() if name != "kind"}
    valid = [name for name in _field_names(part) if name != "kind"]
    for name in given:
        if name not in valid:
            listed = choices(name, valid) if valid else " It has no fields."
            raise ValueError(f"{name} is not a field of {kind_of(part)}.{listed}")
    try:
        return _adapter(part).validate_python(given, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = problem_of(first)
        raise ValueError(f"{kind_of(part)}: {where + ': ' if where else ''}{problem}") from error


def dump(part: Any, taken: Collection[str] = ()) -> dict[str, Any]:
    """A custom configuration as a recipe table; `taken` are the kinds that other parts use.

    Raises `ValueError` if no recipe could name the part, or if it would be read with other values.
    """
    kind = kind_of(part)
    if kind in taken:
        kind = f"{type(part).__module__}:{type(part).__qualname__}"
    if kind.startswith("__main__:"):
        raise ValueError(
            f"{kind} is defined in the script that runs, so nothing else could open what it saves: "
            "define the class in a module and import it"
        )
    if "<locals>" in kind:
        raise ValueError(f"{kind} cannot be saved: define the class at the top of a module")
    written = _adapter(type(part)).dump_python(part, mode="json")
    table = {name: value for name, value in written.items() if name != "kind"}
    for name, value in table.items():
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise ValueError(
                f"{kind}: {name} = {value}: only finite numbers can be saved"
            ) from None
    again = construct(type(part), json.loads(json.dumps(table)))
    for name in _field_names(type(part)):
        value, restored = getattr(part, name), getattr(again, name)
        if value != restored:
            raise ValueError(
                f"{kind}: {name} = {value!r} would be read again as {restored!r}: give the field "
                "a type that says what it is, such as tuple[int, ...]"
            )
    return {"kind": kind, **table}


def _is_table(cls: type) -> bool:
    return is_dataclass(cls) or hasattr(cls, "model_fields")


def _is_frozen(part: type) -> bool:
    if is_dataclass(part):
        return bool(part.__dataclass_params__.frozen)  # pyright: ignore[reportAttributeAccessIssue]
    return bool(getattr(part, "model_config", {}).get("frozen"))


def _field_names(part: type) -> list[str]:
    """The field names of a dataclass or pydantic model."""
    return (
        [field.name for field in fields(part)]
        if is_dataclass(part)
        else [*getattr(part, "model_fields", {})]
    )


@cache
def _adapter(part: type) -> Any:
    return TypeAdapter(part)


def named(kind: str, *, from_file: bool = False) -> Any:
    """Return the object named by `module:Class` or an entry point; None for an unknown word.

    Raises `ValueError` if its module is not imported, or has no such class.
    """
    if ":" in kind:
        return _imported(kind)
    if (entry := installed_parts().get(kind)) is None:
        return None
    if from_file and entry.value.partition(":")[0] not in sys.modules:
        raise ValueError(
            f"{kind!r} is a part of an installed package: a file that is only read imports "
            f"nothing. Import {entry.value.partition(':')[0]} before, on the command line by "
            f"`addnorm … --import {entry.value.partition(':')[0]}`"
        )
    return entry.load()


def _imported(kind: str) -> Any:
    """Look up `module:Class` among the imported modules, without importing anything."""
    module_name, _, path = kind.partition(":")
    module = sys.modules.get(module_name)
    if module is None:
        raise ValueError(
            f"{kind!r} needs the module {module_name}, which is not imported: import it, on the "
            f"command line by `addnorm … --import {module_name}.py`"
        )
    value: Any = module
    for name in path.split("."):
        names: Mapping[str, Any] = vars(value) if hasattr(value, "__dict__") else {}
        if name not in names and module_name == "__main__":
            raise ValueError(
                f"{path} was defined in the script that ran: define it in a module, such as "
                "my_parts.py, and train again"
            )
        if name not in names:
            classes = [key for key, cls in names.items() if isinstance(cls, type)]
            where = vars(module).get("__file__") or module_name
            raise ValueError(f"{where} has no {path}.{nearest(name, classes)}")
        value = names[name]
    return value


@cache
def installed_parts() -> Mapping[str, EntryPoint]:
    """The parts registered by installed packages, without importing them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _loaded_entry_points() -> Iterator[tuple[str, Any]]:
    """Yield the parts of installed packages whose modules are imported already."""
    for name, entry in installed_parts().items():
        module, _, path = entry.value.partition(":")
        value: Any = sys.modules.get(module)
        for attribute in path.split("."):
            value = vars(value).get(attribute) if value is not None else None
        if value is not None:
            yield name, value
