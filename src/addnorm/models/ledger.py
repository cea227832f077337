"""The ledger: whoever reads a built model accounts for all of it, or refuses.

Exporters, quantisers and compilers know the parts that they were written for. A `Ledger` lists
what a model is made of as it stands now: the type of every module, every parameter and buffer,
and every plain attribute (ε, scales, caps, frequencies, activations, masks). A reader claims what
it has read by reading it through the ledger, leaves out what it need not read with a reason, and
`close` raises `InputError` naming the first thing that is left. So an unknown part, a new setting
or a module that was replaced after building can never be overlooked.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import Linear

M = TypeVar("M", bound=nn.Module)

BOOKKEEPING = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"})
"""The attributes that torch has for its own use; an RNN lists its parameters twice."""

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that compute nothing: what they hold is listed by itself."""

HOOKS = "forward hooks"
TYPE = ""
"""The name under which a module itself stands, beside those of its attributes."""

LAYER = re.compile(r"(?:(\w+)\.)?blocks\.(\d+)\.?(.*)")


@dataclass(frozen=True)
class Item:
    """One thing that a model is made of: a module (by its type), or an attribute of one."""

    module: nn.Module
    path: str
    """The path of the module in the model."""
    name: str
    """The attribute; empty for the module itself."""

    @property
    def key(self) -> tuple[int, str]:
        """What tells it from others; a module that stands in several places is one."""
        return id(self.module), self.name

    @property
    def kind(self) -> Literal["module", "hooks", "parameter", "buffer", "setting"]:
        """What sort of thing it is."""
        if self.name in (TYPE, HOOKS):
            return "module" if self.name == TYPE else "hooks"
        if self.name in _parameters(self.module):
            return "parameter"
        return "buffer" if self.name in _buffers(self.module) else "setting"

    @property
    def value(self) -> object:
        """What it is now."""
        if self.name == TYPE:
            return self.module
        return len(hooks_of(self.module)) if self.name == HOOKS else getattr(self.module, self.name)

    def __str__(self) -> str:
        full = f"{self.path}.{self.name}".strip(".") or "the model"
        found = LAYER.fullmatch(full)
        if found is None:
            return f"{full} ({shown(self.value)})"
        stack, layer, inner = found.groups()
        of = f" of the {stack}" if stack not in (None, "stack") else ""
        return f"{inner or 'the block'} ({shown(self.value)}) of layer {layer}{of}"


class Ledger:
    """What `model` is made of, and what of it `reader` has accounted for.

    `reader` is the name that a refusal begins with, such as "GGUF".
    """

    def __init__(self, model: nn.Module, reader: str) -> None:
        self.model = model
        self.reader = reader
        self.items = {item.key: item for item in items_of(model)}
        self._claimed: set[tuple[int, str]] = set()

    # Reading, which claims.

    def module(self, module: nn.Module, *kinds: type[M]) -> M:
        """The module, which must be exactly of one of these types: a subclass is another part.

        Raises `InputError` naming it where it is not.
        """
        if type(module) not in kinds:
            raise self.refusal(module, TYPE, " or ".join(kind.__name__ for kind in kinds))
        self._claimed.add((id(module), TYPE))
        return module  # pyright: ignore[reportReturnType]

    def take(self, module: nn.Module, name: str) -> Any:
        """The parameter, buffer or setting `name` of a module."""
        self._claimed.add((id(module), name))
        return getattr(module, name)

    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by their first names, for who writes them under these names."""
        self._claimed.update(item.key for item in self.items.values() if item.kind == "parameter")
        return dict(self.model.named_parameters())

    def state(self) -> dict[str, Tensor]:
        """All parameters and persistent buffers by name, for who keeps them under these names."""
        self.parameters()
        kept = self.model.state_dict()
        for item in self.items.values():
            if item.kind == "buffer" and f"{item.path}.{item.name}".strip(".") in kept:
                self._claimed.add(item.key)
        return kept

    def expect(self, module: nn.Module, name: str, value: object) -> None:
        """Claim a setting that can have one value only. Raises `InputError` where it has not."""
        if not equal(self.take(module, name), value):
            raise self.refusal(module, name, shown(value))

    def same(self, modules: Sequence[nn.Module], name: str) -> Any:
        """The value that `name` has in all of these modules, for what a format stores only once.

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
        """The weight and the bias of a plain linear map."""
        self.module(layer, Linear, nn.Linear)
        self.leave(layer, "in_features", "out_features", because="the weight has this shape")
        return self.take(layer, "weight"), self.take(layer, "bias")

    def table(self, embedding: nn.Module) -> Tensor:
        """The weight of a plain embedding table."""
        self.module(embedding, nn.Embedding)
        self.leave(
            embedding, "num_embeddings", "embedding_dim", because="the weight has this shape"
        )
        self.leave(embedding, "norm_type", because="it is the norm of max_norm, which must be None")
        self.leave(embedding, "scale_grad_by_freq", "sparse", because="they are about gradients")
        return self.take(embedding, "weight")

    def dropout(self, dropout: nn.Module) -> None:
        """Account for dropout, which does nothing at inference."""
        self.module(dropout, Dropout)
        self.leave(dropout, "p", because="nothing is dropped at inference")

    # What is not read.

    def leave(self, module: nn.Module, *names: str, because: str) -> None:
        """Leave attributes out knowingly; the reason is for those who read the code."""
        assert because
        self._claimed.update((id(module), name) for name in names)

    def leave_all(self, module: nn.Module, *, because: str) -> None:
        """Leave a module out with everything in it."""
        assert because
        self._claimed.update(item.key for item in items_of(module))

    def refusal(self, module: nn.Module, name: str, accepted: str | None = None) -> InputError:
        """The error for an attribute, or for a module itself, that the reader cannot express."""
        more = "" if accepted is None else f": it knows {accepted} there"
        return InputError(f"{self.reader} cannot hold {self._item(module, name)}{more}")

    def close(self, within: nn.Module | None = None) -> None:
        """Raise `InputError` naming the first thing, of all or within a module, that is unclaimed.

        None is no setting: an optional part that is not there needs no claim.
        """
        for item in self.items.values() if within is None else items_of(within):
            if item.key not in self._claimed:
                raise InputError(f"{self.reader} cannot hold {self.items.get(item.key, item)}")

    def _item(self, module: nn.Module, name: str) -> Item:
        return self.items.get((id(module), name)) or Item(module, self._path(module), name)

    def _path(self, module: nn.Module) -> str:
        found = self.items.get((id(module), TYPE))
        return type(module).__name__ if found is None else found.path


def items_of(model: nn.Module) -> Iterator[Item]:
    """Everything that a model is made of, module by module, each before what it holds."""
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
    """What runs before and after the forward of a module."""
    before, after = vars(module)["_forward_pre_hooks"], vars(module)["_forward_hooks"]
    return [*before.values(), *after.values()]


def check_as_built(ledger: Ledger, model: nn.Module, built: nn.Module) -> None:
    """Claim all that is as in `built`, a model fresh from the configuration that will be written.

    The types of modules and their settings must be the same; parameters and buffers may differ, and
    are left to be claimed by who writes them. Raises `InputError` naming the first that is not.
    """
    expected, found = _by_place(built), _by_place(model)
    for place, item in found.items():
        if place not in expected:
            raise ledger.refusal(item.module, item.name)
        _claim_as(ledger, item, expected[place])
    if missing := expected.keys() - found.keys():
        first = next(item for place, item in expected.items() if place in missing)
        raise InputError(f"{ledger.reader} cannot leave out {first}")
    ours, theirs = (dict(one.named_parameters()) for one in (model, built))
    if apart := ours.keys() ^ theirs.keys():
        raise InputError(
            f"{ledger.reader} cannot hold this model: {min(apart)} is "
            + ("tied to another, and should not be" if apart & theirs.keys() else "no longer tied")
        )


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
    """The items of every place, those of a module in several places at each of them."""
    modules = model.named_modules(remove_duplicate=False)
    return {(path, item.name): item for path, one in modules for item in _items_at(path, one)}


def equal(one: object, other: object) -> bool:
    """Whether two settings are the same, number by number where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = one.detach().cpu(), other.detach().cpu()
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    return one is other or (type(one) is type(other) and bool(one == other))


def shown(value: object) -> str:
    """A setting as a refusal shows it."""
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
