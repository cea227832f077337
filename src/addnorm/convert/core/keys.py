"""Two-way tables of config keys: an entry reads keys from a `config.json`, and writes them back.

Fields of a model are named by paths, such as `attention.n_heads`. An entry may have several paths,
separated by spaces, whose fields take the same value; a model may lack some of them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import ValidationError

from addnorm.convert.core.differences import written_out
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.nn.feedforward import Activation
from addnorm.parts import kind_of

Fields = Mapping[str, Any]
"""The values of fields by their paths."""

Default = int | Callable[[Settings], int | None] | None
"""A size, or what computes it from other keys."""

OF_SPEC = frozenset({"vocab_size", "target_vocab_size", "labels", "pad_id"})
"""The fields of a `ModelSpec`; all other paths start at its model."""


@runtime_checkable
class Entry(Protocol):
    """Keys of a `config.json`, and the configuration fields that they express."""

    def read(self, settings: Settings) -> Fields:
        """The field values for a `config.json`.

        Raises `InputError` for an unsupported value of a key.
        """
        ...

    def write(self, spec: ModelSpec) -> Json:
        """The keys for a model. Raises `InputError` for a value without a key."""
        ...


Entries = tuple[Entry, ...]
"""Several of them."""


@dataclass(frozen=True)
class ConfigTable:
    """All keys of a family: `base` has the parts that its models share, with any sizes.

    `constants` are written into every `config.json`. `simplify` turns what was read into the usual
    form of the same model.
    """

    base: ModelConfig
    entries: tuple[Entry, ...]
    constants: Json = field(default_factory=dict[str, Any])
    simplify: Callable[[ModelConfig], ModelConfig] = lambda model: model

    def read(self, settings: Settings) -> ModelSpec:
        """The configuration for a `config.json`. Raises `InputError` for an unsupported value."""
        values: dict[str, Any] = {}
        sources: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            with settings.reading():
                fields = entry.read(settings)
            values |= fields
            sources |= dict.fromkeys(fields, settings.suspects)
        of_spec = {name: values.pop(name) for name in OF_SPEC & values.keys()}
        try:
            return ModelSpec(model=self.simplify(with_values(self.base, values)), **of_spec)
        except ValidationError as error:
            settings.suspects = _keys_of(error, values, sources)
            raise

    def write(self, spec: ModelSpec) -> Json:
        """The keys for a model, as far as the family can express it."""
        if type(spec.model) is not type(self.base):
            raise InputError(f"this family has no model of kind {spec.model.kind!r}")
        if not isinstance(spec.model.attention, type(self.base.attention)):
            kind = kind_of(self.base.attention)
            raise InputError(f"this family has {kind}, not {kind_of(spec.model.attention)}")
        spec = replace(spec, model=written_out(spec.model))
        tree = dict(self.constants)
        for entry in self.entries:
            tree |= entry.write(spec)
        return tree


def _keys_of(
    error: ValidationError, values: Fields, sources: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The keys from which a field got its invalid value."""
    first = error.errors()[0]
    if first["loc"]:
        name, value = str(first["loc"][0]), first["input"]
        paths = [p for p in values if p.rpartition(".")[2] == name and values[p] == value]
    else:  # several fields, which the message names
        names = re.findall(r"(\w+) = ", first["msg"])
        paths = [p for p in values if p.rpartition(".")[2] in names]
    return frozenset[str]().union(*(sources[path] for path in paths))


def with_values(part: Any, values: Fields) -> Any:
    """The part with new values at these paths, skipping fields that it lacks."""
    names = {field.name for field in fields(part)}
    changes = {path: value for path, value in values.items() if path in names}
    for name in names:
        inner = {
            path.removeprefix(f"{name}."): value
            for path, value in values.items()
            if path.startswith(f"{name}.")
        }
        value = changes.get(name, getattr(part, name))
        if inner and is_dataclass(value):
            changes[name] = with_values(value, inner)
    return replace(part, **changes)


def values_at(spec: ModelSpec, paths: str) -> Iterator[Any]:
    """The values at these paths, skipping fields that the model lacks."""
    for path in paths.split():
        parts = [spec if path in OF_SPEC else spec.model]
        for name in path.split("."):
            parts = [getattr(part, name) for part in parts if hasattr(part, name)]
        yield from parts


@dataclass(frozen=True)
class Key(ABC):
    """A key with the value of a field, under one of several names; the first one is written."""

    paths: str
    names: str

    @abstractmethod
    def decoded(self, settings: Settings) -> Any:
        """Our value for the key's value."""

    def encoded(self, value: Any) -> Any:
        """The key's value for ours."""
        return value

    def read(self, settings: Settings) -> Fields:
        return dict.fromkeys(self.paths.split(), self.decoded(settings))

    def write(self, spec: ModelSpec) -> Json:
        values = list(values_at(spec, self.paths))
        return {self.names.split()[0]: self.encoded(values[0])} if values else {}


@dataclass(frozen=True)
class Size(Key):
    """A positive integer; without a `default` it is required.

    `missing` stands for an absent key if that differs from a null.
    """

    default: Default | Literal["required"] = "required"
    missing: Default = None

    def decoded(self, settings: Settings) -> int | None:
        names = self.names.split()
        if self.default == "required":
            return settings.required_int(*names)
        size = settings.optional_int(*names)
        absent = not any(name in settings.tree for name in names)
        if size is not None:
            return size
        default = self.missing if absent and self.missing is not None else self.default
        return default(settings) if callable(default) else default

    def write(self, spec: ModelSpec) -> Json:
        keys = super().write(spec)
        if not keys and self.default == "required":
            name = self.paths.split()[0].split(".")[0]
            part = getattr(spec.model, name)
            raise InputError(f"this family has no {kind_of(part)} {name}")
        return keys


@dataclass(frozen=True)
class Value(Key):
    """A boolean or number of the type of its default, which may come from another key."""

    default: bool | float | Callable[[Settings], float]

    def decoded(self, settings: Settings) -> bool | float:
        default = self.default(settings) if callable(self.default) else self.default
        return settings.get(self.names, default)


@dataclass(frozen=True)
class Choice(Key):
    """One of our values for each valid value of the key; `default` is one of the latter."""

    ours: Mapping[Any, Any]
    default: str | bool

    def decoded(self, settings: Settings) -> Any:
        return settings.choose(self.names, self.ours, self.default)

    def encoded(self, value: Any) -> Any:
        return their_name(value, self.ours)


def their_name(value: Any, ours: Mapping[Any, Any]) -> Any:
    """Their first name for our value; if a part only differs in settings, that of its kind.

    Reading back then names the fields that differ. Raises `InputError` for other values.
    """
    equal = [name for name, other in ours.items() if other == value]
    kind = type(value) if is_dataclass(value) else ()
    similar = [name for name, other in ours.items() if isinstance(other, kind)]
    if not equal and not similar:
        shown = kind_of(value) if is_dataclass(value) else value
        raise InputError(f"this family has no {shown!r}, only {', '.join(map(str, ours))}")
    return [*equal, *similar][0]


ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "squared_relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
"""From Hugging Face names (including older ones) to ours; the first of several is written."""


@dataclass(frozen=True)
class Repeated(Key):
    """A key that only transformers uses: written, but ignored on reading."""

    def decoded(self, settings: Settings) -> None:
        settings.ignore(*self.names.split())

    def read(self, settings: Settings) -> Fields:
        self.decoded(settings)
        return {}


VOCABULARY = Size("vocab_size", "vocab_size")
SIZES: tuple[Entry, ...] = (
    Size("d_model", "hidden_size"),
    Size("n_layers", "num_hidden_layers"),
    Size("attention.n_heads", "num_attention_heads"),
    Size("feedforward.d_ff", "intermediate_size"),
)
"""The keys of sizes under their usual names."""


NO_TOKENS: Json = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
"""The ids of a model without a tokenizer; those of transformers are of a certain vocabulary."""


@dataclass(frozen=True)
class Fixed:
    """Keys that must have one value, or one of `others`; written if transformers needs them."""

    names: str
    value: object
    others: tuple[object, ...] = ()
    written: bool = False

    def read(self, settings: Settings) -> Fields:
        for name in self.names.split():
            settings.expect(name, self.value, *self.others)
        return {}

    def write(self, spec: ModelSpec) -> Json:
        return dict.fromkeys(self.names.split(), self.value) if self.written else {}


@dataclass(frozen=True)
class Ignored:
    """Keys that do not affect inference."""

    names: str

    def read(self, settings: Settings) -> Fields:
        settings.ignore(*self.names.split())
        return {}

    def write(self, spec: ModelSpec) -> Json:
        return {}


@dataclass(frozen=True)
class Computed:
    """Keys and fields that are converted by functions."""

    reading: Callable[[Settings], Fields]
    writing: Callable[[ModelSpec], Json] = lambda spec: {}

    def read(self, settings: Settings) -> Fields:
        return self.reading(settings)

    def write(self, spec: ModelSpec) -> Json:
        return self.writing(spec)


def layers_ahead(*names: str) -> Computed:
    """How many layers predict further ahead, under the first of these keys.

    A file says by its tensors how many it has.
    """

    def read(settings: Settings) -> Fields:
        settings.ignore(*names)
        return {}

    def write(spec: ModelSpec) -> Json:
        depths = [mtp.depth for mtp in values_at(spec, "mtp") if mtp is not None]
        return {names[0]: depths[0]} if depths else {}

    return Computed(read, write)
