"""Adapters: converted between our names and a Hugging Face family's, and merged into weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from addnorm.convert.core.family import Family, tensor_names
from addnorm.convert.core.maps import (
    Concatenated,
    InterleavedHeads,
    Renamed,
    TensorMap,
    Transposed,
)
from addnorm.convert.folder import describe_folder, is_hf_folder
from addnorm.convert.weights.peft import PeftAdapter
from addnorm.errors import InputError, nearest
from addnorm.nn.linear import LowRank

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class TheirNames:
    """A Hugging Face family's tensor maps, which convert an adapter's names."""

    family: Family | None = None
    maps: Sequence[TensorMap] = ()

    @classmethod
    def of(cls, folder: Path) -> "TheirNames":
        """The tensor maps of a Hugging Face folder; empty for a run folder with our names."""
        if not is_hf_folder(folder):
            return cls()
        family, spec, _ = describe_folder(folder)
        if family.equivalent(spec.model) != spec.model:
            return cls(family)
        return cls(family, family.maps(spec, tensor_names(spec)))

    def find(self, name: str) -> TensorMap | None:
        """The map of a tensor; a model without a head omits the prefix in its name."""
        if self.family is None:
            return None
        name = self.family.renamed(name)
        first_names = ((name,), (f"{self.family.prefix}{name}",))
        return next((entry for entry in self.maps if entry.theirs[:1] in first_names), None)


# From ours to theirs.


def in_their_names(
    adapter: PeftAdapter, names: TheirNames, weights: Weights
) -> tuple[PeftAdapter, bool] | None:
    """The adapter in the family's names, and whether the family stores matrices as (in, out).

    None if the conversion would not be exact, such as for a new head or for magnitudes of a part of
    a joint matrix (`c_attn` of GPT-2). Changes of parts of a joint matrix become one change, whose
    rank is the sum of theirs.
    """
    ours = {name: entry for entry in names.maps for name in entry.ours}
    layers: dict[str, LowRank] = {}
    transposed: set[bool] = set()
    for name in adapter.layers:
        entry = ours.get(f"{name}.weight")
        inner = entry.inner if isinstance(entry, Transposed) else entry
        if entry is None or not isinstance(inner, Renamed | Concatenated | InterleavedHeads):
            return None
        module = entry.theirs[0].removesuffix(".weight")
        parts = [adapter.layers.get(part.removesuffix(".weight")) for part in inner.ours]
        joint = _joint(inner, parts, [weights[part].shape[0] for part in inner.ours])
        if joint is None:
            return None
        layers[module] = joint
        transposed.add(isinstance(entry, Transposed))
    saved: dict[str, Tensor] = {}
    for name, tensor in adapter.saved.items():
        entry = ours.get(name)
        if not isinstance(entry, Renamed):
            return None
        saved[entry.their_name] = tensor
    if len(transposed) > 1:
        return None
    return PeftAdapter(adapter.base, layers, saved), transposed == {True}


def _joint(
    inner: Renamed | Concatenated | InterleavedHeads,
    parts: Sequence[LowRank | None],
    sizes: Sequence[int],
) -> LowRank | None:
    """Join the changes to parts of a matrix: all A stacked, and each B in the rows of its part.

    None if their scales differ, or if only some of the parts have magnitudes.
    """
    present = [part for part in parts if part is not None]
    if len(parts) == 1:
        return present[0]
    if len({part.scale for part in present}) > 1:
        return None
    with_magnitude = [part.magnitude is not None for part in present]
    if any(with_magnitude) and len(present) < len(parts):
        return None
    rank, at = sum(part.a.shape[0] for part in present), 0
    rows: list[Tensor] = []
    for part, size in zip(parts, sizes, strict=True):
        padded = present[0].b.new_zeros(size, rank)
        if part is not None:
            n = part.a.shape[0]
            padded[:, at : at + n] = part.b
            at += n
        rows.append(padded)
    lengths = [part.magnitude[:, None] for part in present if part.magnitude is not None]
    return LowRank(
        torch.cat([part.a for part in present]),
        inner.write(rows)[0],
        present[0].scale,
        inner.write(lengths)[0][:, 0] if lengths else None,
    )


# Into the weights of a model.


def changed_weights(weights: Weights, adapter: PeftAdapter, names: TheirNames) -> dict[str, Tensor]:
    """The changes that an adapter makes, by our weight names.

    Its layers have our names or those of the family. Replaced tensors come first, since PEFT stores
    the base of a changed head as one. Raises `InputError` for a name that neither has, and for a
    change of another shape.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in adapter.saved.items():
        if name not in weights and _is_tied_copy(name, adapter, names):
            continue
        tensor_map = None if name in weights else _map_of(name, weights, names)
        new = {name: tensor} if tensor_map is None else _read(tensor_map, tensor)
        for ours, value in new.items():
            if value.shape != weights[ours].shape:
                raise InputError(
                    f"{name} has shape {tuple(value.shape)}, the model's "
                    f"{tuple(weights[ours].shape)}"
                )
            tensors[ours] = value.to(weights[ours].dtype)
    for module, change in adapter.layers.items():
        name = f"{module}.weight"
        tensor_map = None if name in weights else _map_of(name, weights, names)
        try:
            tensors |= _changed({**weights, **tensors}, name, tensor_map, change)
        except RuntimeError as error:
            raise InputError(
                f"the change of {module} has shape {change.b.shape[0]} × {change.a.shape[1]}, "
                "unlike the matrix"
            ) from error
    return tensors


def _is_tied_copy(name: str, adapter: PeftAdapter, names: TheirNames) -> bool:
    """Whether a tensor is a tied copy of a stored one, as PEFT saves them."""
    tensor = adapter.saved[name]
    others = (other for other_name, other in adapter.saved.items() if other_name != name)
    unknown = adapter.stays_tied and names.find(name) is None
    return unknown and any(torch.equal(tensor, other) for other in others)


def _map_of(name: str, weights: Weights, names: TheirNames) -> TensorMap:
    tensor_map = names.find(name)
    if tensor_map is None:
        valid_names = [theirs for each in names.maps for theirs in each.theirs] or [*weights]
        raise InputError(
            f"the adapter changes {name}, which the model lacks.{nearest(name, valid_names)}"
        )
    return tensor_map


def _changed(
    weights: Weights, name: str, tensor_map: TensorMap | None, change: LowRank
) -> dict[str, Tensor]:
    if tensor_map is None:
        return {name: change.changed(weights[name])}
    [theirs] = tensor_map.write([weights[ours] for ours in tensor_map.ours])
    if isinstance(tensor_map, Transposed):
        return _read(tensor_map, change.changed(theirs.mT).mT)
    return _read(tensor_map, change.changed(theirs))


def _read(tensor_map: TensorMap, theirs: Tensor) -> dict[str, Tensor]:
    ours = tensor_map.read([theirs.contiguous()])
    return {name: new.contiguous() for name, new in zip(tensor_map.ours, ours, strict=True)}
