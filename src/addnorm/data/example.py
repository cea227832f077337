"""The base class of examples: methods that give the inputs and targets of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from reprlib import repr as short
from typing import Any, ClassVar, TypeVar

import xxhash
from jaxtyping import Shaped
from torch import Tensor

from addnorm.data.field_types import fields_of, is_needed, value_of, wrong_text
from addnorm.data.media import Medium
from addnorm.errors import InputError, choices
from addnorm.parts import named

E = TypeVar("E", bound="Example")


class Example:
    """One example to learn from: a frozen dataclass whose methods give its inputs and targets.

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

    def source_text(self) -> str:
        """Return the input text; empty for other inputs."""
        return ""

    def second_text(self) -> str:
        """Return the second of two input texts; else empty."""
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
        """Return a description of a wrong value of a field other than a text; None if all fit."""
        return None

    def lack(self) -> str | None:
        """Return why nothing can be learnt from the example, such as "no label"; None if it can.

        Incomplete examples are left out and counted by this reason.
        """
        return None

    def digest(self) -> str | None:
        """Return a digest of the input, to find equal examples; None if they are not compared."""
        if self.signal() is not None:
            return signal_digest(self)
        read = "\0".join([*self.words()] or [self.source_text(), self.second_text()])
        return xxhash.xxh3_128_hexdigest(read.encode())

    @classmethod
    def label_names(cls, examples: Iterable["Example"]) -> tuple[str, ...]:
        """Return the names of a model's outputs: by default all labels of the examples, sorted."""
        labels = {label for example in examples for label in example.target_labels()}
        return tuple(sorted(label for label in labels if label.strip()))

    @classmethod
    def may_lack_targets(cls) -> bool:
        """Return whether examples to predict may lack targets: every target has a default."""
        learnt = (field for field in fields_of(cls) if field.name in cls.targets)
        return bool(cls.targets) and not any(map(is_needed, learnt))

    @classmethod
    def inputs(cls) -> list[str]:
        """Return the names of the fields that are not targets."""
        return [field.name for field in fields_of(cls) if field.name not in cls.targets]

    @classmethod
    def to_predict(cls: type[E], inputs: Mapping[str, Any]) -> E:
        """Return an example to predict from its inputs; its targets have their defaults.

        Raises `InputError` as `of` does.
        """
        return cls.of(inputs, "its inputs", cls.inputs())

    @classmethod
    def of(cls: type[E], values: Mapping[str, Any], where: str, names: Sequence[str] = ()) -> E:
        """Return the example with these fields, of which only `names` may be given; by default all.

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
    """Raise `InputError` unless a kind is a dataclass that names its task, and targets it has."""
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
    """Return the imported kind of example with this name, or `module:Class`.

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
    """Yield all imported subclasses; a class with slots is the last of its name."""
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)


def check_types(example: Example, where: str) -> None:
    """Raise `InputError` for texts and labels that are not strings, and for other wrong values."""
    if wrong := wrong_text(example):
        name, value = wrong
        expected = "a list of texts" if isinstance(value, str) else "text"
        raise InputError(f"{where}: {name}: expected {expected}, not {short(value)}")
    if problem := example.problem():
        raise InputError(f"{where}: {problem}")


def lack_of(**texts: str | None) -> str | None:
    """Return the blank ones of the texts, as "empty source and target"; None if none is.

    A text that is None is not there, and not blank.
    """
    blank = [name for name, text in texts.items() if text is not None and not text.strip()]
    return f"empty {' and '.join(blank)}" if blank else None


def signal_digest(example: Example) -> str:
    """Return a digest of the numbers of an image or a clip, to find equal ones."""
    signal = example.signal()
    assert signal is not None
    return xxhash.xxh3_128_hexdigest(signal.contiguous().numpy().tobytes())
