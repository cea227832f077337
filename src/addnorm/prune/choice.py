"""Which units and layers stay: shares of heads and rows in every layer, and layers by number."""

import re
from collections.abc import Mapping, Sequence

import torch

from addnorm.errors import InputError
from addnorm.prune.importance import Importance
from addnorm.prune.units import Units

Kept = Mapping[str, tuple[int, ...]]
"""The numbers of the units that stay by the path of their sublayer, or of layers by stack."""


def kept_units(units: Sequence[Units], found: Importance, share: float, option: str) -> Kept:
    """The most important units of every sublayer, all but this `share`.

    Sublayers are ranked one by one, so that all keep as many; those that share one table of
    position biases are ranked together, each layer's importances normalised by their Euclidean
    length (Michel et al. 2019, §2.3). Raises `InputError` for a share that removes none or all.
    """
    ranked: dict[str, torch.Tensor] = {}
    for one in units:
        together = [other for other in units if other.path == one.path or _shares(one, other)]
        ranked[one.path] = torch.stack(
            [torch.nn.functional.normalize(found[other.path], dim=0) for other in together]
        ).sum(0)
    return {one.path: _best(ranked[one.path], n_kept(one.n, share, option), one.n) for one in units}


def _shares(one: Units, other: Units) -> bool:
    return one.table is not None and one.table is other.table


def _best(scores: torch.Tensor, n: int, of: int) -> tuple[int, ...]:
    order = sorted(range(of), key=lambda unit: (-float(scores[unit]), unit))
    return tuple(sorted(order[:n]))


def n_kept(n: int, share: float, option: str) -> int:
    """How many of `n` units stay. Raises `InputError` for a share that removes none or all."""
    if not 0.0 < share < 1.0:
        raise InputError(f"`{option} = {share:g}`: give the share to remove, between 0 and 1")
    removed = round(n * share)
    if removed in (0, n):
        nearest = 1 / n if removed == 0 else (n - 1) / n
        what = "no group or row" if removed == 0 else "every group or row"
        more = "there is only one" if n == 1 else f"the nearest share is {nearest:.3g}"
        raise InputError(f"`{option} = {share:g}` removes {what} of {n} in a layer: {more}")
    return n - removed


def kept_layers(layers: Sequence[str], depths: Mapping[str, int]) -> Kept:
    """The layers of each stack that stay, counted from 0: `every:2`, or `0 2 4`.

    `every:k` keeps layers 0, k, 2k, … (Fan et al. 2020, §3.2). Raises `InputError` for a layer that
    a stack does not have, for numbers that do not rise, and for a choice that removes none.
    """
    written = f"`layers = {' '.join(layers)}`"
    kept = {name: _of_stack(layers, depth, written) for name, depth in depths.items()}
    if all(len(one) == depths[name] for name, one in kept.items()):
        why = "the smallest step is every:2" if max(depths.values()) > 1 else "there is only one"
        raise InputError(f"{written} keeps every layer: {why}")
    return kept


def _of_stack(layers: Sequence[str], depth: int, written: str) -> tuple[int, ...]:
    if len(layers) == 1 and (step := re.fullmatch(r"every:([1-9]\d*)", layers[0])):
        return tuple(range(0, depth, int(step[1])))
    if not all(one.isdecimal() for one in layers):
        raise InputError(f"{written}: write numbers of layers, as 0 2 4, or every:2")
    numbers = tuple(map(int, layers))
    if any(i >= depth for i in numbers):
        raise InputError(f"{written}: the model has layers 0 to {depth - 1}")
    if list(numbers) != sorted(set(numbers)):
        rising = " ".join(map(str, sorted(set(numbers))))
        raise InputError(f"{written}: layers keep their order: give {rising}")
    return numbers
