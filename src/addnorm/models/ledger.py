"""The ledger: code that reads a model must account for every part of it, or refuse.

Exporters, quantisers and compilers support only the parts that they were written for. A `Ledger`
lists everything in the model's present state: the type of every module, every parameter and buffer,
and every plain attribute (ε, scales, caps, frequencies, activations, masks). A reader claims an
item by reading it through the ledger, or skips it and states the reason; `close` raises
`InputError` naming the first unclaimed item. So an unknown part, a new setting or a module replaced
after the build is never overlooked.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.nn.blocks import Stack
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import Linear

M = TypeVar("M", bound=nn.Module)

BOOKKEEPING = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"})
"""The attributes that torch uses internally; an RNN lists its parameters twice."""

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that compute nothing; their children are listed separately."""

HOOKS = "forward hooks"
TYPE = ""
"""The item name of a module itself, as opposed to its attributes."""

LAYER = re.compile(r"(?:(\w+)\.)?blocks\.(\d+)\.?(.*)")


@dataclass(frozen=True)
class Item:
    """One item of a model: a module (identified by its type) or an attribute of a module."""

    module: nn.Module
    path: str
    """The path of the module in the model."""
    name: str
    """The attribute; empty for the module itself."""

    @property
    def key(self) -> tuple[int, str]:
        """The identity of the item; a module used in several places is one item."""
        return id(self.module), self.name

    @property
    def kind(self) -> Literal["module", "hooks", "parameter", "buffer", "setting"]:
        """The kind of the item."""
        if self.name in (TYPE, HOOKS):
            return "module" if self.name == TYPE else "hooks"
        if self.name in _parameters(self.module):
            return "parameter"
        return "buffer" if self.name in _buffers(self.module) else "setting"

    @property
    def value(self) -> object:
        """The current value."""
        if self.name == TYPE:
            return self.module
        return len(hooks_of(self.module)) if self.name == HOOKS else getattr(self.module, self.name)

    def __str__(self) -> str:
        full = f"{self.path}.{self.name}".strip(".") or "the model"
        match = LAYER.fullmatch(full)
        if match is None:
            return f"{full} ({shown(self.value)})"
        stack, layer, inner = match.groups()
        of = f" of the {stack}" if stack not in (None, "stack") else ""
        return f"{inner or 'the block'} ({shown(self.value)}) of layer {layer}{of}"


class Ledger:
    """All items of `model`, and which of them `reader` has accounted for.

    `reader` is the name at the start of an error message, such as "GGUF".
    """

    def __init__(self, model: nn.Module, reader: str) -> None:
        self.model = model
        self.reader = reader
        self.items = {item.key: item for item in items_of(model)}
        self._claimed: set[tuple[int, str]] = set()

    # Reading an item claims it.

    def module(self, module: nn.Module, *kinds: type[M]) -> M:
        """Claim a module whose type is exactly one of `kinds`; subclasses do not count.

        Raises `InputError` naming the module if it has another type.
        """
        if type(module) not in kinds:
            raise self.refusal(
                module, TYPE, " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
            )
        self._claimed.add((id(module), TYPE))
        return module  # pyright: ignore[reportReturnType]

    def take(self, module: nn.Module, name: str) -> Any:
        """Claim and return the parameter, buffer or setting `name` of a module."""
        self._claimed.add((id(module), name))
        return getattr(module, name)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Claim and return all parameters by name, for writers that keep these names."""
        self._claimed.update(item.key for item in self.items.values() if item.kind == "parameter")
        return dict(self.model.named_parameters())

    def state(self) -> dict[str, Tensor]:
        """Claim all parameters and persistent buffers, for writers that keep their names."""
        self.parameters()
        state = self.model.state_dict()
        for item in self.items.values():
            if item.kind == "buffer" and f"{item.path}.{item.name}".strip(".") in state:
                self._claimed.add(item.key)
        return state

    def expect(self, module: nn.Module, name: str, value: object) -> None:
        """Claim a setting that must equal `value`. Raises `InputError` if it does not."""
        if not equal(self.take(module, name), value):
            raise self.refusal(module, name, shown(value))

    def same(self, modules: Sequence[nn.Module], name: str) -> Any:
        """Claim `name`, which must have one value in all modules, and return that value.

        For settings that a format stores only once.

        Raises `InputError` naming the first module in which it differs.
        """
        first, *others = modules
        value = self.take(first, name)
        for module in others:
            if not equal(self.take(module, name), value):
                here, there = self._item(module, name), self._item(first, name)
                raise InputError(
                    f"{self.reader} has one value for all layers, not {here} and {there}"
                )
        return value

    def linear(self, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Claim a plain linear layer; return its weight and bias."""
        self.module(layer, Linear, nn.Linear)
        self.leave(layer, "in_features", "out_features", because="the weight has this shape")
        return self.take(layer, "weight"), self.take(layer, "bias")

    def table(self, embedding: nn.Module) -> Tensor:
        """Claim a plain embedding table; return its weight."""
        self.module(embedding, nn.Embedding)
        self.leave(
            embedding, "num_embeddings", "embedding_dim", because="the weight has this shape"
        )
        self.leave(embedding, "norm_type", because="it is the norm of max_norm, which must be None")
        self.leave(embedding, "scale_grad_by_freq", "sparse", because="they are about gradients")
        return self.take(embedding, "weight")

    def dropout(self, dropout: nn.Module) -> None:
        """Claim a dropout module, which does nothing at inference."""
        self.module(dropout, Dropout)
        self.leave(dropout, "p", because="nothing is dropped at inference")

    def stack(self, stack: Stack) -> Stack:
        """Claim a stack, without its blocks and norm; it skips layers in training alone."""
        if stack.layer_drop is not None:
            self.leave_all(stack.layer_drop, because="no layer is dropped at inference")
        return self.module(stack, Stack)

    # Skipping items.

    def leave(self, module: nn.Module, *names: str, because: str) -> None:
        """Skip attributes deliberately; the reason is for readers of the code."""
        assert because
        self._claimed.update((id(module), name) for name in names)

    def leave_all(self, module: nn.Module, *, because: str) -> None:
        """Skip a module and everything in it."""
        assert because
        self._claimed.update(item.key for item in items_of(module))

    def refusal(self, module: nn.Module, name: str, accepted: str | None = None) -> InputError:
        """The error for an attribute or a module that the reader does not support."""
        more = "" if accepted is None else f": it knows {accepted} there"
        return InputError(f"{self.reader} cannot hold {self._item(module, name)}{more}")

    def close(self, within: nn.Module | None = None) -> None:
        """Raise `InputError` naming the first unclaimed item, of the model or of one module.

        Attributes that are None are not listed, so absent optional parts need no claim.
        """
        for item in self.items.values() if within is None else items_of(within):
            if item.key not in self._claimed:
                raise InputError(f"{self.reader} cannot hold {self.items.get(item.key, item)}")

    def _item(self, module: nn.Module, name: str) -> Item:
        return self.items.get((id(module), name)) or Item(module, self._path(module), name)

    def _path(self, module: nn.Module) -> str:
        item = self.items.get((id(module), TYPE))
        return type(module).__name__ if item is None else item.path


def items_of(model: nn.Module) -> Iterator[Item]:
    """Yield all items of a model, module by module, parents before children."""
    for path, module in model.named_modules():
        yield from _items_at(path, module)


def _items_at(path: str, module: nn.Module) -> Iterator[Item]:
    if type(module) not in CONTAINERS:
        yield Item(module, path, TYPE)
    if hooks_of(module):
        yield Item(module, path, HOOKS)
    for name in _names(module):
        yield Item(module, path, name)


def _names(module: nn.Module) -> Iterator[str]:
    """The parameters, buffers and plain attributes that are not None."""
    yield from _parameters(module)
    yield from _buffers(module)
    for name, value in vars(module).items():
        if name not in BOOKKEEPING and value is not None:
            yield name


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def hooks_of(module: nn.Module) -> list[object]:
    """The hooks that run before and after the forward of a module."""
    before, after = vars(module)["_forward_pre_hooks"], vars(module)["_forward_hooks"]
    return [*before.values(), *after.values()]


def check_as_built(ledger: Ledger, model: nn.Module, built: nn.Module) -> None:
    """Claim every item that equals the item of `built`, a fresh model of the configuration.

    Module types and settings must be equal; parameters and buffers may differ, and are claimed by
    the code that writes them. Raises `InputError` naming the first item that differs.
    """
    expected, items = _by_place(built), _by_place(model)
    for place, item in items.items():
        if place not in expected:
            raise ledger.refusal(item.module, item.name)
        _claim_as(ledger, item, expected[place])
    if missing := expected.keys() - items.keys():
        first = next(item for place, item in expected.items() if place in missing)
        raise InputError(f"{ledger.reader} cannot leave out {first}")
    ours, theirs = (dict(m.named_parameters()) for m in (model, built))
    if apart := ours.keys() ^ theirs.keys():
        raise InputError(
            f"{ledger.reader} cannot hold this model: {min(apart)} is "
            + ("tied to another, and should not be" if apart & theirs.keys() else "no longer tied")
        )


def check_unchanged(model: nn.Module, built: nn.Module) -> None:
    """Raise `InputError` unless `model` has the modules, settings and hooks of `built`.

    Weights may differ. Of an object that knows no equality but its identity, such as a random
    generator of a custom module, only the type is compared.
    """
    expected, items = _by_place(built), _by_place(model)
    for place in items.keys() ^ expected.keys():
        raise InputError(f"{items.get(place) or expected[place]} was changed after the build")
    for place, item in items.items():
        value, was = item.value, expected[place].value
        if item.kind in ("parameter", "buffer") or item.name in ("p", "dropout"):
            continue
        if item.name == TYPE:
            same = type(item.module) is type(expected[place].module)
        elif type(value) is type(was) and type(value).__eq__ is object.__eq__:
            same = not callable(value) or value is was
        else:
            same = equal(value, was)
        if not same:
            raise InputError(f"{item} was changed after the build: it was {shown(was)}")


def _claim_as(ledger: Ledger, item: Item, expected: Item) -> None:
    module, name = item.module, item.name
    if name == TYPE:
        ledger.module(module, type(expected.module))
    elif name in ("p", "dropout") and isinstance(item.value, float):
        ledger.leave(module, name, because="nothing is dropped at inference")
    elif item.kind in ("parameter", "buffer"):
        if (shape := getattr(expected.module, name).shape) != getattr(module, name).shape:
            raise ledger.refusal(module, name, f"the shape {tuple(shape)}")
    else:
        ledger.expect(module, name, expected.value)


def _by_place(model: nn.Module) -> dict[tuple[str, str], Item]:
    """All items by path; a shared module appears under each of its paths."""
    modules = model.named_modules(remove_duplicate=False)
    return {(path, item.name): item for path, m in modules for item in _items_at(path, m)}


def equal(value: object, other: object) -> bool:
    """Whether two settings are equal; tensors are compared element by element."""
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        a, b = value.detach().cpu(), other.detach().cpu()
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    return value is other or (type(value) is type(other) and bool(value == other))


def shown(value: object) -> str:
    """Format a value for an error message."""
    match value:
        case nn.Module():
            return type(value).__name__
        case Tensor() if value.is_meta or value.numel() > 4:
            return f"a tensor of shape {tuple(value.shape)}"
        case Tensor():
            return f"{value.tolist()}"
        case _ if callable(value):
            return getattr(value, "__name__", repr(value))
        case _:
            return repr(value)[:80]
