"""Tensor parallelism: heads, features and vocabulary are split, each process computes a part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.models.ledger import LAYER
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import linear
from addnorm.nn.splits import OUTPUT, WHOLE_INPUT, Split, Splits, declared_splits
from addnorm.training.parallel.pieces import Group, Piece, copied, gathered, shared, summed

VALUES = (OUTPUT, WHOLE_INPUT)
"""The names, among the splits of a part, of what goes through it."""

SHARED = ("addnorm.nn.norms", "addnorm.nn.linear", "addnorm.nn.dropout", "torch.nn.modules.")
"""Where the layers are defined that compute the same for each head, with weights of all heads."""


@dataclass(frozen=True)
class DropoutSplit:
    """The axis of a dropout's inputs along which each process has a piece."""

    axis: int
    total: int | None
    """The length of the axis; None where all pieces are of one length."""

    def piece(self, x: Tensor, group: Group) -> Piece:
        """The piece of the whole that `x` is."""
        total = self.total or x.shape[self.axis] * group.size
        return Piece(group, self.axis, total, total)


@dataclass(frozen=True)
class Layout:
    """The parts of a model that are split: parameters, dropouts and outputs."""

    parameters: dict[str, Piece] = field(default_factory=dict[str, Piece])
    """By name; a parameter without a piece is the same in all processes, its gradient too."""
    dropouts: dict[nn.Module, DropoutSplit] = field(default_factory=dict[nn.Module, DropoutSplit])
    outputs: dict[nn.Module, Piece] = field(default_factory=dict[nn.Module, Piece])
    """Modules of which each process computes a piece of the output."""
    inside: set[nn.Module] = field(default_factory=set[nn.Module])
    """The modules that compute with one process's piece."""


def split_model(model: nn.Module, group: Group) -> Layout:
    """Keep only this process's pieces in `model`, and make it compute with them; return the layout.

    Raises `InputError` for a part that cannot be split among so many processes.
    """
    check_splits(model, group.size)
    parts = [(module, splits, _units_of(module, splits)) for module, splits in _split_parts(model)]
    splitter = _Splitter(group, Layout())
    for part in parts:
        splitter.split(*part)
    for module, splits, units in parts:
        if _is_region(module, splits):
            splitter.enclose(module, splits, units)
        if WHOLE_INPUT in splits:
            splitter.gather(module, splits[WHOLE_INPUT].axis, units[WHOLE_INPUT])
    pieces = splitter.pieces
    named = [(name, p) for name, p in model.named_parameters() if p in pieces]
    splitter.layout.parameters.update({name: pieces[p] for name, p in named})
    return splitter.layout


def _units_of(module: nn.Module, splits: Splits) -> dict[str, int | None]:
    """The number of units along each split axis, if the part declares it."""
    return {
        name: None if split.units is None else int(getattr(module, split.units))
        for name, split in splits.items()
    }


def check_splits(model: nn.Module, processes: int) -> None:
    """Raise `InputError` for the first part that cannot be split among this many processes."""
    _check_around(model)
    paths = {module: path for path, module in model.named_modules()}
    for module, splits in _split_parts(model):
        for name, split in splits.items():
            _check_units(module, name, split, processes, paths[module])
        if _is_region(module, splits):
            for child in [m for m in module.modules() if m is not module]:
                _check_inside(child, module, paths)


def _split_parts(model: nn.Module) -> Iterator[tuple[nn.Module, Splits]]:
    """Yield the parts that are split, with their splits.

    A part is whole if another keeps one of its weights whole, and if it computes with heads of
    which no part around it has only some.
    """
    declared = [(m, s) for m in model.modules() if (s := declared_splits(m)) is not None]
    claims = {
        (owner, name) for module, splits in declared for owner, name in _claimed(module, splits)
    }
    wholes = {
        parameter
        for owner in model.modules()
        for name, parameter in owner._parameters.items()  # pyright: ignore[reportPrivateUsage]
        if (owner, name) not in claims
    }
    parts = list[tuple[nn.Module, Splits]]()
    for module, splits in declared:
        of_part = {owner._parameters.get(name) for owner, name in _claimed(module, splits)}  # pyright: ignore[reportPrivateUsage]
        if not (of_part - {None}) & wholes:
            parts.append((module, splits))
    regions = [module for module, splits in parts if _is_region(module, splits)]
    inside = {inner for region in regions for inner in region.modules()}
    for module, splits in parts:
        if module in inside or _has_table(module, splits):
            yield module, splits


def _has_table(module: nn.Module, splits: Splits) -> bool:
    """Whether a part has a table split by rows, whose lookups are summed over processes."""
    return any(
        split.axis == 0 and isinstance(_target(module, name), nn.Embedding)
        for name, split in splits.items()
        if name not in VALUES
    )


def _claimed(module: nn.Module, splits: Splits) -> Iterator[tuple[nn.Module, str]]:
    """Yield the parameters that the splits name: the module that holds each, and its name there."""
    for name, split in splits.items():
        if name in VALUES:
            continue
        owner, last = _owner(module, name)
        target = getattr(owner, last)
        if isinstance(target, nn.Parameter):
            yield owner, last
        elif isinstance(target, nn.Linear | nn.Embedding):
            yield target, "weight"
            if isinstance(target, nn.Linear) and split.axis == 0:
                yield target, "bias"


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds the target of a dotted name, and its name in that module."""
    inner, _, last = name.rpartition(".")
    try:
        owner = module.get_submodule(inner)
        getattr(owner, last)
    except AttributeError as error:
        raise InputError(f"{type(module).__name__}.splits names {name}, which it lacks") from error
    return owner, last


def _is_region(module: nn.Module, splits: Splits) -> bool:
    """Whether each process computes a summand of this module's output, or a piece of it."""
    return any(
        name == OUTPUT
        or (
            name != WHOLE_INPUT and split.axis == 1 and isinstance(_target(module, name), nn.Linear)
        )
        for name, split in splits.items()
    )


def _target(module: nn.Module, name: str) -> Any:
    owner, last = _owner(module, name)
    return getattr(owner, last)


# What cannot be split.


def _check_units(module: nn.Module, name: str, split: Split, processes: int, path: str) -> None:
    target = None if name in VALUES else _target(module, name)
    weight = target.weight if isinstance(target, nn.Linear | nn.Embedding) else target
    if not isinstance(weight, Tensor):
        return
    units, what = weight.shape[split.axis], f"{name} of {weight.shape[split.axis]}"
    valid = range(1, units + 1)
    if split.units is not None:
        units = int(getattr(module, split.units))
        what = f"{split.units} = {units}"
        valid = [n for n in range(1, units + 1) if divides(units, n, copied=split.copied)]
    if processes in valid or (split.copied and divides(units, processes, copied=True)):
        return
    nearest = min(valid, key=lambda n: abs(n - processes))
    raise InputError(
        f"{placed(path)} has {what}, which does not divide among {processes} processes: the "
        f"nearest number that it divides among is {nearest}"
    )


def divides(units: int, processes: int, *, copied: bool = False) -> bool:
    """Whether each process gets equally many units; with `copied`, several may share a unit."""
    return units % processes == 0 or (copied and processes % units == 0)


def _check_inside(child: nn.Module, part: nn.Module, paths: Mapping[nn.Module, str]) -> None:
    """Raise `InputError` for a part inside a split one that does not declare its own split."""
    splits = declared_splits(child)
    name = f"{placed(paths[child])} ({type(child).__name__})"
    if splits is not None and _is_region(child, splits):
        raise InputError(
            f"{name} is split, and so is {type(part).__name__} around it: leave splits out of one"
        )
    if splits is None and not type(child).__module__.startswith(SHARED):
        raise InputError(
            f"{name} does not say how it is split over processes: give the class an attribute "
            "splits (addnorm.nn.splits), {} if it computes alike for each head, or use one process"
        )


def _check_around(model: nn.Module) -> None:
    """Raise `InputError` if a part for some of the heads is also used in a layer with all heads."""
    named = dict(model.named_modules(remove_duplicate=False))
    parts = dict(_split_parts(model))
    regions = tuple(
        f"{path}." for path, m in named.items() if m in parts and _is_region(m, parts[m])
    )
    for path, module in named.items():
        of_part = parts.get(module)
        if of_part and ".blocks." in path and not f"{path}.".startswith(regions):
            around = named[path.rpartition(".")[0]]
            raise InputError(
                f"{placed(path)} ({type(module).__name__}) is split by heads, and "
                f"{type(around).__name__} around it does not say how it is split over processes: "
                "give that class an attribute splits (addnorm.nn.splits), or use one process"
            )


def placed(path: str) -> str:
    """A module's path in readable form, with the number of its layer."""
    match = LAYER.fullmatch(path)
    if match is None:
        return path or "the model"
    stack, layer, inner = match.groups()
    of = f" of the {stack}" if stack not in (None, "stack") else ""
    return f"{inner or 'the block'} of layer {layer}{of}"


# Splitting.


class _Splitter:
    """Splits the parts of a model among the processes of a group."""

    def __init__(self, group: Group, layout: Layout) -> None:
        self.group = group
        self.layout = layout
        self.pieces: dict[Tensor, Piece] = {}
        self.after_sums: set[Tensor] = set()
        """The biases that are added to sums over the processes."""
        self._replaced: dict[nn.Module, nn.Module] = {}

    def split(self, module: nn.Module, splits: Splits, units: Mapping[str, int | None]) -> None:
        """Keep only this process's pieces of a part's tensors."""
        for name, split in splits.items():
            if name in VALUES:
                continue
            owner, last = _owner(module, name)
            target = getattr(owner, last)
            match target:
                case nn.Parameter():
                    self._cut(target, split.axis, units[name])
                case Tensor():
                    piece = self._piece(target, split.axis, units[name])
                    setattr(owner, last, piece.of(target).clone())
                case Dropout():
                    self.layout.dropouts[target] = DropoutSplit(split.axis, units[name])
                case nn.Linear() | nn.Embedding():
                    setattr(owner, last, self._split_layer(target, split.axis, units[name]))
                case None:
                    pass
                case _:
                    raise InputError(
                        f"{type(module).__name__}.splits names {name}, a {type(target).__name__}: "
                        "only linear layers, tables, dropouts and tensors are split"
                    )

    def enclose(self, module: nn.Module, splits: Splits, units: Mapping[str, int | None]) -> None:
        """Sum the gradients of a part's inputs and whole weights; gather its output."""
        self.layout.inside.update(module.modules())
        for parameter in module.parameters():
            if parameter not in self.after_sums:
                self.pieces.setdefault(parameter, Piece.whole_of(parameter, self.group))

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(_entering(value, self.group) for value in args)

        module.register_forward_pre_hook(enter)
        if OUTPUT in splits:
            total = units[OUTPUT]
            assert total is not None
            output = Piece(self.group, splits[OUTPUT].axis, total, total)
            self.layout.outputs[module] = output

            def leave(_: nn.Module, __: Any, piece: Tensor) -> Tensor:
                return gathered(piece, output)

            module.register_forward_hook(leave)

    def gather(self, module: nn.Module, axis: int, units: int | None) -> None:
        """Gather the input of a part inside a split one; keep this process's output piece."""
        assert units is not None
        piece = Piece(self.group, axis, units, units)

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (shared(args[0], piece), *args[1:])

        def leave(_: nn.Module, __: Any, whole: Tensor) -> Tensor:
            return piece.of(whole)

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    def _split_layer(
        self, layer: nn.Linear | nn.Embedding, axis: int, units: int | None
    ) -> nn.Module:
        """The layer that computes with this process's piece of the weight."""
        if layer in self._replaced:
            return self._replaced[layer]
        made: nn.Module = layer
        if isinstance(layer, nn.Embedding):
            rows = self._piece(layer.weight, axis, units)
            self._cut(layer.weight, axis, units)
            layer.embedding_dim = layer.weight.shape[1]
            made = VocabularyTable(layer, rows) if axis == 0 else layer
        else:
            self._cut(layer.weight, axis, units)
            layer.out_features, layer.in_features = layer.weight.shape
            biases = [p for name, p in layer.named_parameters() if name == "bias"]
            if axis == 1:
                made = RowParallelLinear(layer, self.group)
                self.after_sums.update(biases)
            for bias in biases if axis == 0 else ():
                self._cut(bias, 0, units)
        self._replaced[layer] = self._replaced[made] = made
        return made

    def _cut(self, parameter: Tensor, axis: int, units: int | None) -> None:
        if parameter not in self.pieces:  # a tied one is cut once
            piece = self.pieces[parameter] = self._piece(parameter, axis, units)
            parameter.data = piece.of(parameter.data).clone()

    def _piece(self, tensor: Tensor, axis: int, units: int | None) -> Piece:
        if tensor in self.pieces:
            return self.pieces[tensor]
        return Piece(self.group, axis, tensor.shape[axis], units or tensor.shape[axis])


def _entering(value: Any, group: Group) -> Any:
    """An input of a split part, with its gradient summed over processes."""
    if isinstance(value, Tensor):
        return copied(value, group)
    if isinstance(value, Context) and value.memory is not None:
        hidden = copied(value.memory.hidden, group)
        return replace(value, memory=replace(value.memory, hidden=hidden))
    return value


class RowParallelLinear(nn.Linear):
    """`Σ_r x_r W_rᵀ + b` over processes r, each with some columns of `W` and of `x`."""

    def __init__(self, layer: nn.Linear, group: Group) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight = layer.weight
        self.bias = layer.bias
        self.group = group

    def forward(self, input: Float[Tensor, "*batch piece"]) -> Float[Tensor, "*batch d_out"]:
        y, bias = summed(linear(input, self.weight), self.group), self._parameters["bias"]
        return y if bias is None else y + bias.to(y.dtype)


class VocabularyTable(nn.Embedding):
    """`Σ_r E_r[tokens]` over processes r, each with some rows and zero for all other tokens.

    `num_embeddings` counts the rows of all.
    """

    def __init__(self, table: nn.Embedding, rows: Piece) -> None:
        super().__init__(table.num_embeddings, table.embedding_dim, device="meta")
        self.weight = table.weight
        self.rows = rows

    def forward(self, input: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        first, last = self.rows.bounds
        own = (input >= first) & (input < last)
        x = F.embedding((input - first).where(own, 0), self.weight)
        return summed(x.where(own[..., None], 0.0), self.rows.group)
