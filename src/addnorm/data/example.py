"""The base class of examples, the values and types of their fields, and their media."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from decimal import Decimal
from functools import cache
from operator import attrgetter
from reprlib import Repr
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import xxhash
from jaxtyping import Shaped
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from torch import Tensor

from addnorm.data.conversation import check_text
from addnorm.errors import InputError, choices
from addnorm.parts import named

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that a tensor holds."""

LAX = ConfigDict(allow_inf_nan=False)
"""Numbers may be written as text, as every cell of a CSV file is; NaN and infinity are refused."""

NAMES: dict[object, tuple[str, str]] = {
    str: ("text", "texts"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "truth values"),
}
"""Types of values, one and several."""


NUMPY = (np.generic, np.ndarray)
MAY_BE_NAN = (float, Decimal)


def plain(cell: Any) -> object:
    """Convert a numpy number or array to Python's own types; leave any other cell unchanged."""
    return cell.tolist() if isinstance(cell, NUMPY) else cell


def is_missing(cell: object) -> bool:
    """Whether a cell is empty: None, NaN or blank text."""
    cell = plain(cell)
    if isinstance(cell, MAY_BE_NAN) and math.isnan(cell):
        return True
    return cell is None or (isinstance(cell, str) and not cell.strip())


def fields_of(kind: type) -> tuple[Field[Any], ...]:
    """Return the fields of a kind of example. Raises `InputError` unless it is a dataclass."""
    if not is_dataclass(kind):
        raise InputError(
            f"{kind.__name__} is not a dataclass: put @dataclass(frozen=True) above it"
        )
    return fields(kind)


def is_needed(field: Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is field.default_factory is MISSING


@cache
def types_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field without None, and whether None is allowed.

    Raises `InputError` for a type that cannot be found.
    """
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise InputError(f"{kind.__name__}: the type of a field: {error}: import it") from error
    return {field.name: _without_none(hints[field.name]) for field in fields_of(kind)}


def _without_none(hint: Any) -> tuple[Any, bool]:
    inner = [member for member in get_args(hint) if member is not type(None)]
    is_optional = get_origin(hint) in (Union, UnionType) and len(inner) < len(get_args(hint))
    return (inner[0], True) if is_optional and len(inner) == 1 else (hint, is_optional)


def are_texts(hint: Any) -> bool:
    """Return whether a type is that of a list of texts."""
    return hint in (tuple[str, ...], list[str])


def value_of(kind: type, name: str, cell: object) -> object:
    """Convert a cell to the value of a field; None for an empty cell.

    A list becomes a tuple, and a single value stands for a list with this value. Raises
    `InputError` for a cell of another type.
    """
    (hint, _), cell = types_of(kind)[name], plain(cell)
    if cell is None or (is_missing(cell) and hint is not str):
        return None
    if get_origin(hint) is tuple and not isinstance(cell, list | tuple):
        cell = [cell]
    wrong = f"{name}: expected {_described(hint)}, not {short(cell)}"
    _check_leaves(hint, cell, name, wrong)
    if hint is str:
        if not isinstance(cell, str):
            raise InputError(wrong)
        return cell
    try:
        value = _adapter(hint).validate_python(cell)
    except ValidationError as error:
        raise InputError(wrong) from error
    except PydanticSchemaGenerationError as error:
        raise InputError(
            f"{name}: a cell of a table cannot be {_described(hint)}: give such examples in "
            "Python, or as data of your own"
        ) from error
    if any(isinstance(leaf, int) and abs(leaf) > LARGEST_INTEGER for leaf in _leaves(value)):
        raise InputError(f"{name}: an integer of more than 64 bits: {short(cell)}")
    return value


@cache
def _adapter(hint: Any) -> Any:
    return TypeAdapter(hint, config=None if is_dataclass(hint) else LAX)


def _leaves(value: Any) -> Iterator[object]:
    """The values in a list nested to any depth."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        yield from _leaves([*value.values()])
    else:
        yield value


def _check_leaves(hint: Any, cell: object, where: str, wrong: str) -> None:
    """Raise `InputError` for a value of the wrong type: no text, or a boolean as a number."""
    text_alone, has_truths = hint is str or are_texts(hint), "bool" in str(hint)
    for leaf in _leaves(cell):
        if isinstance(leaf, str):
            check_text(leaf, where)
        elif text_alone or (isinstance(leaf, bool) and not has_truths and hint is not Any):
            raise InputError(wrong)


def _described(hint: Any) -> str:
    if hint in NAMES:
        return NAMES[hint][0]
    inner = [member for member in get_args(hint) if member is not ...]
    if get_origin(hint) in (tuple, list) and len(set(inner)) == 1 and inner[0] in NAMES:
        return f"a list of {NAMES[inner[0]][1]}"
    return getattr(hint, "__name__", str(hint)) if not get_args(hint) else str(hint)


@cache
def text_fields(kind: type) -> tuple[tuple[str, bool, bool], ...]:
    """Return the text fields: the name, whether it is a single text, whether it may be None."""
    return tuple(
        (name, hint is str, is_optional)
        for name, (hint, is_optional) in types_of(kind).items()
        if hint is str or are_texts(hint)
    )


def wrong_text(example: object) -> tuple[str, object] | None:
    """Return the first text field with a value that is not text, and that value.

    None if all are. A single text is not several: it would be read letter by letter.
    """
    for name, is_single, is_optional in text_fields(type(example)):
        value = getattr(example, name)
        if is_single or value is None or isinstance(value, str):
            is_right = (value is None and is_optional) or (is_single and isinstance(value, str))
            wrong = [] if is_right else [value]
        else:
            wrong = [text for text in value if not isinstance(text, str)]
        if wrong:
            return name, wrong[0]
    return None


Medium = Literal["text", "images", "audio", "series"]
"""The medium of the examples' input."""


@dataclass(frozen=True, kw_only=True)
class MediumProperties:
    """The properties of a medium that decide how its examples are read."""

    plural: str
    """The noun for several of them."""
    batching: str
    """The kind of batching that takes any of them."""
    tokens: bool = False
    """Whether a tokenizer reads them."""
    files: bool = False
    """Whether each is in a separate file."""
    padded: bool = False
    """Whether examples of different lengths share a batch, padded."""
    frames: bool = False
    """Whether their length is a number of frames, which bounds the length of a target text."""


PROPERTIES: Mapping[Medium, MediumProperties] = {
    "text": MediumProperties(plural="texts", batching="tokens", tokens=True, padded=True),
    "images": MediumProperties(plural="images", batching="examples", files=True),
    "audio": MediumProperties(
        plural="audio", batching="frames", files=True, padded=True, frames=True
    ),
    "series": MediumProperties(plural="series", batching="series", padded=True),
}
"""The properties of each medium."""


def has_signals(medium: Medium | None) -> bool:
    """Return whether a medium's examples are signals, which need no tokenizer; False if unknown."""
    return medium is not None and not PROPERTIES[medium].tokens


def has_files(medium: Medium | None) -> bool:
    """Return whether each example of a medium is a file of its own; False if unknown."""
    return medium is not None and PROPERTIES[medium].files


E = TypeVar("E", bound="Example")


def _shown(self: "Example") -> str:
    """The fields of an example, the long ones shortened, as a notebook shows it."""
    values = ", ".join(
        f"{field.name}={_BRIEF.repr(getattr(self, field.name))}" for field in fields_of(type(self))
    )
    return f"{type(self).__name__}({values})"


_BRIEF = Repr()
_BRIEF.maxstring = 100


class Example:
    """An example to learn from: a frozen dataclass with methods for its inputs and targets.

    A custom kind is a subclass with its fields, which overrides the methods that concern it.
    """

    __slots__ = ()

    task: ClassVar[str]
    """The name of the task that such examples are usually for."""
    medium: ClassVar[Medium] = "text"
    """The medium of the input."""
    writes: ClassVar[bool] = False
    """Whether the target is a text, which needs a tokenizer."""
    targets: ClassVar[tuple[str, ...]] = ()
    """The fields that a model learns to predict; an example to predict has their defaults."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__repr__ in (object.__repr__, _shown):  # a dataclass keeps what the class has
            cls.__repr__ = _shown

    def source_text(self) -> str:
        """Return the input text; empty if the input is not text."""
        return ""

    def second_text(self) -> str:
        """Return the second of two input texts; empty if there is only one."""
        return ""

    def target_text(self) -> str:
        """Return the target text: a translation, caption or transcript; else empty."""
        return ""

    def target_labels(self) -> tuple[str, ...]:
        """Return the class, labels or tags; empty for other targets."""
        return ()

    def target_numbers(self) -> tuple[float, ...]:
        """Return the numbers to predict; empty for other targets."""
        return ()

    def words(self) -> tuple[str, ...]:
        """Return the words to tag; empty for other tasks."""
        return ()

    def signal(self) -> Shaped[Tensor, "channels *size"] | None:
        """Return the numbers of an image, a clip or a whole series; None for text."""
        return None

    def problem(self) -> str | None:
        """Return the problem with a field's value other than a text; None if there is none."""
        return None

    def lack(self) -> str | None:
        """Return why nothing can be learnt from the example, such as "no label"; None if it can.

        Incomplete examples are left out and counted by this reason.
        """
        return None

    def digest(self) -> str | None:
        """Return a digest of the input, by which equal examples are found; None to skip this."""
        if self.signal() is not None:
            return signal_digest(self)
        read = "\0".join([*self.words()] or [self.source_text(), self.second_text()])
        return xxhash.xxh3_128_hexdigest(read.encode())

    @classmethod
    def label_names(cls, examples: Iterable["Example"]) -> tuple[str, ...]:
        """Return the names of a model's outputs: by default all labels of the examples, sorted."""
        if cls.target_labels is Example.target_labels:
            return ()
        labels = {label for example in examples for label in example.target_labels()}
        return tuple(sorted(label for label in labels if label.strip()))

    @classmethod
    def may_lack_targets(cls) -> bool:
        """Return whether examples may come without targets, since all have defaults."""
        learnt = (field for field in fields_of(cls) if field.name in cls.targets)
        return bool(cls.targets) and not any(map(is_needed, learnt))

    @classmethod
    def inputs(cls) -> list[str]:
        """Return the names of the input fields: all fields but the targets."""
        return [field.name for field in fields_of(cls) if field.name not in cls.targets]

    @classmethod
    def to_predict(cls: type[E], inputs: Mapping[str, Any]) -> E:
        """Return an example with these inputs, and default targets, to predict for.

        Raises `InputError` as `of` does.
        """
        return cls.of(inputs, "its inputs", cls.inputs())

    @classmethod
    def of(cls: type[E], values: Mapping[str, Any], where: str, names: Sequence[str] = ()) -> E:
        """Build an example from field values, of which only `names` may be given; by default all.

        The values are the cells of a table (see `value_of`); an empty one is a field that is not
        given. Raises `InputError` for a field that is missing, does not exist, or is of another
        type.
        """
        fields = [field for field in fields_of(cls) if not names or field.name in names]
        valid = [field.name for field in fields]
        for name in values:
            if name not in valid:
                raise InputError(f"{name} is not a field of {where}.{choices(name, valid)}")
        read = {name: value_of(cls, name, value) for name, value in values.items()}
        given = {name: value for name, value in read.items() if value is not None}
        missing = [field.name for field in fields if is_needed(field) and field.name not in given]
        if missing:
            raise InputError(f"{' and '.join(missing)} missing: give {', '.join(valid)}")
        example = cls(**given)
        check_types(example, where)
        return example


def check_kind(kind: type[Example]) -> None:
    """Raise `InputError` unless a kind is a dataclass that names its task and its own targets."""
    if not hasattr(kind, "task"):
        raise InputError(
            f"{kind.__name__} names no task: give the class task = 'my_task', the name of its task"
        )
    names = [field.name for field in fields_of(kind)]
    targets: Any = kind.targets
    if not isinstance(targets, tuple):
        raise InputError(
            f"{kind.__name__}.targets = {short(targets)}: must be a tuple of names of fields, such "
            "as ('label',)"
        )
    for name in targets:  # pyright: ignore[reportUnknownVariableType]
        if name not in names:
            raise InputError(
                f"{kind.__name__}.targets has {name!r}, which is not a field."
                f"{choices(str(name), names)}"
            )


def kind_named(name: str) -> type[Example]:
    """Return the imported kind of example with this name, or given as `module:Class`.

    Raises `InputError` with the nearest name for an unknown one.
    """
    kinds = {kind.__name__: kind for kind in _below(Example)}
    if name in kinds:
        return kinds[name]
    try:
        kind = named(name) if ":" in name else None
    except ValueError as error:
        raise InputError(f"data.example = {name!r}: {error}") from error
    if isinstance(kind, type) and issubclass(kind, Example):
        return kind
    raise InputError(f"data.example = {name!r}.{choices(name, sorted(kinds))}")


def _below(kind: type[Example]) -> Iterator[type[Example]]:
    """Yield all imported subclasses; of several with one name, only the last."""
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)


def check_types(example: Example, where: str) -> None:
    """Raise `InputError` for texts or labels that are not strings, and for other wrong values."""
    if wrong := wrong_text(example):
        name, value = wrong
        expected = "a list of texts" if isinstance(value, str) else "text"
        raise InputError(f"{where}: {name}: expected {expected}, not {short(value)}")
    if problem := example.problem():
        raise InputError(f"{where}: {problem}")


def check_every(kind: type[Example], examples: Sequence[Example], split: str) -> None:
    """Raise `InputError` as `check_types` does, for the first of many examples of a kind."""
    if _are_plain(kind, examples):
        return
    for n, example in enumerate(examples, 1):
        check_types(example, f"{split} example {n}")


def _are_plain(kind: type[Example], examples: Sequence[Example]) -> bool:
    """Whether every text field has a text, or an empty tuple of texts, in each example.

    This is seen field by field, several times as fast as example by example.
    """
    if kind.problem is not Example.problem:
        return False
    for name, is_single, is_optional in text_fields(kind):
        values = map(attrgetter(name), examples)
        if is_single and not {*map(type, values)} <= {str, *([NoneType] if is_optional else [])}:
            return False
        if not is_single and any(type(value) is not tuple or value for value in values):
            return False
    return True


def lack_of(**texts: str | None) -> str | None:
    """Return which of the texts are blank, as "empty source and target"; None if none is.

    A text that is None is not there, and not blank.
    """
    for text in texts.values():
        if text is not None and not text.strip():
            break
    else:  # as in almost every example
        return None
    blank = [name for name, text in texts.items() if text is not None and not text.strip()]
    return f"empty {' and '.join(blank)}"


def signal_digest(example: Example) -> str:
    """Return a digest of the values of an image or clip, by which equal ones are found."""
    signal = example.signal()
    assert signal is not None
    return xxhash.xxh3_128_hexdigest(signal.contiguous().numpy().tobytes())
