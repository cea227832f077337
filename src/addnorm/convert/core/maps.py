"""Bidirectional tensor maps between our models and other libraries.

A map names tensors on both sides. `read` converts theirs to ours, `write` ours to theirs, by views
rather than copies where possible.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class OneToOne(ABC):
    """A map of one of our tensors to one of theirs."""

    our_name: str
    their_name: str

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.our_name,)

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    @abstractmethod
    def read(self, theirs: Tensors) -> Tensors: ...

    @abstractmethod
    def write(self, ours: Tensors) -> Tensors: ...


@dataclass(frozen=True)
class Renamed(OneToOne):
    """The same tensor under a different name."""

    def read(self, theirs: Tensors) -> Tensors:
        return theirs

    def write(self, ours: Tensors) -> Tensors:
        return ours


@dataclass(frozen=True)
class Concatenated:
    """Several of our tensors, concatenated along the first axis in one of theirs.

    `sizes` are the lengths of ours along that axis.
    """

    ours: tuple[str, ...]
    their_name: str
    sizes: tuple[int, ...]

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    def read(self, theirs: Tensors) -> Tensors:
        [tensor] = theirs
        if len(tensor) != sum(self.sizes):
            raise ValueError(f"has {len(tensor)} rows, expected {sum(self.sizes)}")
        return tensor.split(list(self.sizes))

    def write(self, ours: Tensors) -> Tensors:
        return [torch.cat(list(ours))]


@dataclass(frozen=True)
class InterleavedHeads:
    """Queries, keys and values by key–value head: `q1 k1 v1 q2 k2 v2 …` (GPT-NeoX).

    Several queries that share a key–value head stand before it: `q1 q2 k1 v1 q3 q4 k2 v2` (Falcon).
    """

    ours: tuple[str, str, str]
    their_name: str
    n_heads: int
    n_kv_heads: int | None = None

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    @property
    def _groups(self) -> tuple[int, list[int]]:
        """The number of key/value heads, and of the queries, keys and values for each."""
        n = self.n_kv_heads or self.n_heads
        return n, [self.n_heads // n, 1, 1]

    def read(self, theirs: Tensors) -> Tensors:
        [tensor] = theirs
        n, each = self._groups
        if len(tensor) % (n * sum(each)):
            raise ValueError(
                f"has {len(tensor)} rows, which do not divide into {self.n_heads} heads of queries "
                f"and {n} of keys and of values"
            )
        by_head = tensor.unflatten(0, (n, sum(each), -1))
        return [part.flatten(0, 2) for part in by_head.split(each, 1)]

    def write(self, ours: Tensors) -> Tensors:
        n, each = self._groups
        by_head = [part.unflatten(0, (n, m, -1)) for part, m in zip(ours, each, strict=True)]
        return [torch.cat(by_head, 1).flatten(0, 2)]


@dataclass(frozen=True)
class AlternatingHeads:
    """Several of our tensors in one of theirs, head by head: `k1 v1 k2 v2 …`, each of a width."""

    ours: tuple[str, ...]
    their_name: str
    widths: tuple[int, ...]

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    def read(self, theirs: Tensors) -> Tensors:
        [tensor] = theirs
        if len(tensor) % sum(self.widths):
            raise ValueError(
                f"has {len(tensor)} rows, which do not divide into heads of "
                f"{' and '.join(map(str, self.widths))} rows"
            )
        heads = tensor.unflatten(0, (-1, sum(self.widths)))
        return [part.flatten(0, 1) for part in heads.split([*self.widths], 1)]

    def write(self, ours: Tensors) -> Tensors:
        heads = [w.unflatten(0, (-1, n)) for w, n in zip(ours, self.widths, strict=True)]
        return [torch.cat(heads, 1).flatten(0, 1)]


@dataclass(frozen=True)
class Transposed:
    """A weight that the other library stores as (in, out), like GPT-2's Conv1D."""

    inner: Renamed | Concatenated

    @property
    def ours(self) -> tuple[str, ...]:
        return self.inner.ours

    @property
    def theirs(self) -> tuple[str, ...]:
        return self.inner.theirs

    def read(self, theirs: Tensors) -> Tensors:
        return self.inner.read([tensor.mT for tensor in theirs])

    def write(self, ours: Tensors) -> Tensors:
        return [tensor.mT for tensor in self.inner.write(ours)]


@dataclass(frozen=True)
class SkipRows(OneToOne):
    """A position table whose first rows are unused: skipped on reading, zeros on writing.

    OPT and BART number positions from 2, RoBERTa from the padding index + 1.
    """

    n_rows: int

    def read(self, theirs: Tensors) -> Tensors:
        return [theirs[0][self.n_rows :]]

    def write(self, ours: Tensors) -> Tensors:
        [tensor] = ours
        return [torch.cat([tensor.new_zeros(self.n_rows, tensor.shape[1]), tensor])]


@dataclass(frozen=True)
class Reshaped(OneToOne):
    """A tensor stored with a different shape."""

    our_shape: tuple[int, ...]
    their_shape: tuple[int, ...]

    def read(self, theirs: Tensors) -> Tensors:
        if tuple(theirs[0].shape) != self.their_shape:
            raise ValueError(f"has shape {tuple(theirs[0].shape)}, expected {self.their_shape}")
        return [theirs[0].reshape(self.our_shape)]

    def write(self, ours: Tensors) -> Tensors:
        return [ours[0].reshape(self.their_shape)]


@dataclass(frozen=True)
class Duplicated:
    """A tensor that the other library stores under two names, of which it uses only the first."""

    our_name: str
    their_name: str
    idle_name: str

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.our_name,)

    @property
    def theirs(self) -> tuple[str, ...]:
        return self.their_name, self.idle_name

    def read(self, theirs: Tensors) -> Tensors:
        return theirs[:1]

    def write(self, ours: Tensors) -> Tensors:
        return [ours[0], ours[0].clone()]


@dataclass(frozen=True)
class StackedExperts:
    """The weights of all experts, `[experts, in, out]`, or their biases, in one tensor.

    `ours` are those of the first expert, then of the second, …; of `n_parts` of each, such as gate
    and up, the rows alternate (GPT-OSS).
    """

    ours: tuple[str, ...]
    their_name: str
    n_parts: int = 1

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    def read(self, theirs: Tensors) -> Tensors:
        [tensor] = theirs
        n, rows = len(self.ours) // self.n_parts, tensor.shape[-1]
        if len(tensor) != n or rows % self.n_parts:
            raise ValueError(
                f"has shape {tuple(tensor.shape)}: expected {n} experts, and {self.n_parts} parts "
                "side by side"
            )
        experts = tensor.mT if tensor.ndim == 3 else tensor
        return [rows[part :: self.n_parts] for rows in experts for part in range(self.n_parts)]

    def write(self, ours: Tensors) -> Tensors:
        parts = [ours[i : i + self.n_parts] for i in range(0, len(ours), self.n_parts)]
        experts = torch.stack([torch.stack([*rows], dim=1).flatten(0, 1) for rows in parts])
        return [experts.mT if experts.ndim == 3 else experts]


@dataclass(frozen=True)
class ConcatenatedExperts:
    """The weights of all experts in one tensor, `[experts, out, in]`.

    `ours` are those of the first expert, then of the second, …; of `n_parts` of each, such as gate
    and up, the rows of one follow those of the other (Qwen3.5, Granite 4).
    """

    ours: tuple[str, ...]
    their_name: str
    n_parts: int = 1

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    def read(self, theirs: Tensors) -> Tensors:
        [tensor] = theirs
        n = len(self.ours) // self.n_parts
        if tensor.ndim != 3 or len(tensor) != n or tensor.shape[1] % self.n_parts:
            raise ValueError(
                f"has shape {tuple(tensor.shape)}: expected {n} experts of {self.n_parts} parts"
            )
        return [part for expert in tensor for part in expert.chunk(self.n_parts)]

    def write(self, ours: Tensors) -> Tensors:
        n = self.n_parts
        return [torch.stack([torch.cat([*ours[i : i + n]]) for i in range(0, len(ours), n)])]


@dataclass(frozen=True)
class ZeroTensor:
    """A tensor without effect that the other library lacks: read as zero, never written.

    A key bias adds the same value to all scores of a query, to which softmax is invariant.
    """

    our_name: str
    shape: tuple[int, ...]

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.our_name,)

    @property
    def theirs(self) -> tuple[str, ...]:
        return ()

    def read(self, theirs: Tensors) -> Tensors:
        return [torch.zeros(self.shape)]

    def write(self, ours: Tensors) -> Tensors:
        return []


@dataclass(frozen=True)
class UnusedTensor:
    """A tensor of theirs that affects no output: not read, and written as zeros."""

    their_name: str
    shape: tuple[int, ...]

    @property
    def ours(self) -> tuple[str, ...]:
        return ()

    @property
    def theirs(self) -> tuple[str, ...]:
        return (self.their_name,)

    def read(self, theirs: Tensors) -> Tensors:
        return []

    def write(self, ours: Tensors) -> Tensors:
        return [torch.zeros(self.shape)]


@dataclass(frozen=True)
class AveragedMaps:
    """One of our linear maps over two joined vectors; theirs are two maps that are averaged.

    Their biases, of which the mean counts alone, become equal.
    """

    our_name: str
    theirs: tuple[str, str]

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.our_name,)

    def read(self, theirs: Tensors) -> Tensors:
        first, second = theirs
        return [(first + second) / 2 if first.ndim == 1 else torch.cat([first, second], 1) / 2]

    def write(self, ours: Tensors) -> Tensors:
        [tensor] = ours
        return [tensor, tensor.clone()] if tensor.ndim == 1 else [*(2 * tensor).chunk(2, 1)]


@dataclass(frozen=True)
class SwappedHalves(OneToOne):
    """A matrix whose left and right half stand the other way round: ours reads the states first."""

    def read(self, theirs: Tensors) -> Tensors:
        left, right = theirs[0].chunk(2, dim=1)
        return [torch.cat([right, left], dim=1)]

    def write(self, ours: Tensors) -> Tensors:
        return self.read(ours)


@dataclass(frozen=True)
class Moved:
    """A map of the tensors of one layer, for those of another."""

    map: "TensorMap"
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    def read(self, theirs: Tensors) -> Tensors:
        return self.map.read(theirs)

    def write(self, ours: Tensors) -> Tensors:
        return self.map.write(ours)


TensorMap = (
    Renamed
    | Concatenated
    | InterleavedHeads
    | AlternatingHeads
    | Transposed
    | SkipRows
    | Reshaped
    | Duplicated
    | StackedExperts
    | ConcatenatedExperts
    | ZeroTensor
    | UnusedTensor
    | AveragedMaps
    | SwappedHalves
    | Moved
)
"""Any tensor map."""


LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
"""The number of a layer, or of an expert in it, in the name of a module."""


def tensor_maps(
    ours: Iterable[str], names: Mapping[str, str], others: Iterable[TensorMap] = ()
) -> list[TensorMap]:
    """The maps for our tensors with the names `ours`.

    `names` are their names of modules by ours, with `*` for the number of a layer, or of an expert
    in it. Their tensors have the last part of our names. `others` are maps of tensors that differ
    in more than the name; they take precedence, and those of tensors that are not in `ours` are
    dropped.
    """
    rest = dict.fromkeys(ours)
    maps: list[TensorMap] = [entry for entry in others if rest.keys() >= {*entry.ours}]
    for name in {name for entry in maps for name in entry.ours}:
        del rest[name]
    for name in rest:
        module, _, part = name.rpartition(".")
        if (theirs := names.get(LAYER.sub("*", module))) is not None:
            maps.append(Renamed(name, f"{_numbered(theirs, module)}.{part}"))
    return maps


def _numbered(theirs: str, module: str) -> str:
    """Their name for a module, with the numbers in our name filled in order."""
    for number in LAYER.findall(module):
        theirs = theirs.replace("*", number, 1)
    return theirs


def within(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """The names of a module's parts, prefixed by our name and by their name for the module."""
    return {f"{ours}.{part}": f"{theirs}.{name}" for part, name in names.items()}


def concatenated(ours: str, parts: Sequence[str], theirs: str, size: int) -> Iterator[Concatenated]:
    """The maps for weights and biases of parts with `size` rows each, which theirs stores joined.

    `theirs` ends before `weight` and `bias`.
    """
    for kind in ("weight", "bias"):
        names = tuple(f"{ours}.{part}.{kind}" for part in parts)
        yield Concatenated(names, f"{theirs}{kind}", (size,) * len(parts))


QKV = ("q_proj", "k_proj", "v_proj")
