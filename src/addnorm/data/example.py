"""An example: what every kind of data to learn from says of itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from reprlib import repr as short
from typing import Any, ClassVar, TypeVar, get_type_hints

import xxhash
from jaxtyping import Shaped
from torch import Tensor

from addnorm.data.media import Medium
from addnorm.errors import InputError, choices
from addnorm.parts import named

E = TypeVar("E", bound="Example")


class Example:
    """One thing to learn from: a frozen dataclass of any kind, which describes itself.

    A kind of your own is a subclass with its fields; it overrides the methods that are of it.
    """

    __slots__ = ()

    task: ClassVar[str]
    """The name of the task that such examples are usually for."""
    medium: ClassVar[Medium] = "text"
    """What is read of an example."""
    writes: ClassVar[bool] = False
    """Whether a text is to be written, for which there must be a tokenizer."""
    targets: ClassVar[tuple[str, ...]] = ()
    """The fields that a model learns to predict; their defaults mean that it is asked for them."""

    def source_text(self) -> str:
        """The text that is read; empty where none is."""
        return ""

    def second_text(self) -> str:
        """The text that is read after the first, of two; else empty."""
        return ""

    def target_text(self) -> str:
        """The text to write: a translation, caption or transcript; else empty."""
        return ""

    def target_labels(self) -> tuple[str, ...]:
        """The class, labels or tags; empty for other targets."""
        return ()

    def target_numbers(self) -> tuple[float, ...]:
        """The numbers to predict; empty for other targets."""
        return ()

    def words(self) -> tuple[str, ...]:
        """The words to tag; empty for other tasks."""
        return ()

    def signal(self) -> Shaped[Tensor, "channels *size"] | None:
        """The numbers of an image, a clip or a series that is read whole."""
        return None

    def problem(self) -> str | None:
        """What is wrong with the values of its fields, besides texts; None if nothing is."""
        return None

    def digest(self) -> str | None:
        """A digest of the input, by which equal examples are found; None if none are compared."""
        if self.signal() is not None:
            return signal_digest(self)
        read = "\0".join([*self.words()] or [self.source_text(), self.second_text()])
        return xxhash.xxh3_128_hexdigest(read.encode())

    @classmethod
    def label_names(cls, examples: Iterable["Example"]) -> tuple[str, ...]:
        """What the outputs of a model stand for: by default all labels of the examples, sorted."""
        labels = {label for example in examples for label in example.target_labels()}
        return tuple(sorted(label for label in labels if label.strip()))

    @classmethod
    def may_lack_targets(cls) -> bool:
        """Whether there are examples without targets, to predict them: those have defaults."""
        learnt = (one for one in _fields(cls) if one.name in cls.targets)
        return bool(cls.targets) and not any(map(_is_needed, learnt))

    @classmethod
    def to_predict(cls: type[E], inputs: Mapping[str, Any]) -> E:
        """The example of these fields, whose targets are to be predicted and have defaults.

        Raises `InputError` as `of` does.
        """
        return cls.of(inputs, "its inputs", [one.name for one in _inputs(cls)])

    @classmethod
    def of(cls: type[E], values: Mapping[str, Any], where: str, names: Sequence[str] = ()) -> E:
        """The example of these fields, of which only `names` may be given; by default all.

        Lists become tuples. Raises `InputError` for a field that is missing, does not exist, or is
        not text where it has to be.
        """
        fields = [one for one in _fields(cls) if not names or one.name in names]
        valid = [one.name for one in fields]
        for name in values:
            if name not in valid:
                raise InputError(f"{name} is not a field of {where}.{choices(name, valid)}")
        missing = [one.name for one in fields if _is_needed(one) and one.name not in values]
        if missing:
            raise InputError(f"{' and '.join(missing)} missing: give {', '.join(valid)}")
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        example = cls(**given)
        check_types(example, where)
        return example


def _inputs(kind: type[Example]) -> list[Any]:
    """The fields that are not targets."""
    return [one for one in _fields(kind) if one.name not in kind.targets]


def kind_named(name: str) -> type[Example]:
    """The imported kind of example with this name, or `module:Class`.

    Raises `InputError`, with the nearest name, if there is none.
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
    """All imported subclasses; of a class with slots the last, which has them."""
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)


@cache
def _text_fields(kind: type[Example]) -> tuple[tuple[str, Any], ...]:
    """The fields that hold a text, perhaps none, or several, with their types; also labels."""
    hints = get_type_hints(kind)
    return tuple(
        (one.name, hints[one.name])
        for one in _fields(kind)
        if hints[one.name] in (str, str | None, tuple[str, ...])
    )


def _strings_of(example: Example) -> Iterator[object]:
    """Everything in an example that must be text: also its classes or tags."""
    for name, hint in _text_fields(type(example)):
        value = getattr(example, name)
        if hint is str:
            yield value
        elif value is not None:
            yield from (value,) if hint == str | None else value


def _is_needed(known: Any) -> bool:
    """Whether a field has no default."""
    return known.default is known.default_factory is MISSING


def _fields(kind: type[Example]) -> tuple[Any, ...]:
    return fields(kind)  # pyright: ignore[reportArgumentType]


def check_types(example: Example, where: str) -> None:
    """Raise `InputError` for texts and classes that are not strings, and tags of other words."""
    for text in _strings_of(example):
        if not isinstance(text, str):
            raise InputError(f"{where}: expected text, not {short(text)}")
    if problem := example.problem():
        raise InputError(f"{where}: {problem}")


def signal_digest(example: Example) -> str:
    """A digest of the numbers of an image or a clip, by which the same one is known again."""
    signal = example.signal()
    assert signal is not None
    return xxhash.xxh3_128_hexdigest(signal.contiguous().numpy().tobytes())
