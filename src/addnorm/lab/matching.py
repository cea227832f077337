"""Making variants cost the same: as many parameters, or operations a token, as the first."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from reprlib import repr as short
from typing import Any, Literal

from addnorm.errors import InputError, choices
from addnorm.inspect.flops import forward_flops
from addnorm.lab.grid import Reader, Variant
from addnorm.runs.build import build_model, count_parameters
from addnorm.runs.recipe import RECIPE, Recipe
from addnorm.runs.training import Prepared

Match = Literal["parameters", "flops"]
Cost = Callable[[Recipe], float]
"""What a recipe's model costs."""

TOLERANCE = 0.02
"""How far from the first a variant may be."""

LARGEST = 2**20
STEP = 8
"""Widths are multiples of this where one is near enough; processors like them."""

FIELD = "model.feedforward.d_ff"


def matched(read: Reader, variants: list[Variant], cost: Cost, field: str = FIELD) -> list[Variant]:
    """The variants with `field` changed so that each costs within 2 % of the first.

    A variant that no width of at least one makes equal is refused, with its reason.
    """
    first = variants[0].recipe
    assert first is not None
    check_width(first, field)
    target = cost(first)
    return [variants[0], *(_matched(read, one, cost, target, field) for one in variants[1:])]


def check_width(recipe: Recipe, field: str) -> None:
    """Raise `InputError` unless `field` names a whole number of a recipe, with the nearest name."""
    here: Any = recipe
    tables: list[str] = []
    for name in field.split("."):
        known = [one.name for one in fields(here)] if is_dataclass(here) else []
        if name not in known:
            place = ".".join(tables) or "the recipe"
            valid = choices(name, known) if known else ""
            raise InputError(f"`match_by = {field}`: {place} has no {name!r}.{valid}")
        here = getattr(here, name)
        tables.append(name)
    if isinstance(here, bool) or not (here is None or isinstance(here, int)):
        raise InputError(f"`match_by = {field}`: {short(here)} is not an integer")


def cost_of(match: Match, variants: Sequence[Variant]) -> Cost:
    """The cost of a recipe's model, with its own vocabulary and the data that it reads.

    These are read once for all recipes that read the same.
    """
    first = variants[0].recipe
    assert first is not None
    known: dict[str, Prepared] = {}

    def cost(recipe: Recipe) -> float:
        tree = RECIPE.dump_python(recipe, mode="json")
        read = {name: tree[name] for name in ("data", "tokenizer")}
        read |= {name: tree["train"][name] for name in ("batching", "start")}
        key = json.dumps(read, sort_keys=True)
        if key not in known:
            known[key] = Prepared(recipe)
        if match == "parameters":
            return count_parameters(recipe, known[key].tokenizers, known[key].labels)
        return flops_per_token(recipe, known[key])

    cost(first)
    return cost


def flops_per_token(recipe: Recipe, prepared: Prepared) -> float:
    """The FLOP of a forward pass for each token that a model learns from, on the first batch."""
    batch = next(iter(prepared.loaders.train.batches(0)))
    model = build_model(recipe, prepared.tokenizers, prepared.labels)
    return forward_flops(model, batch) / max(batch.n_tokens, 1)


def _matched(read: Reader, variant: Variant, cost: Cost, target: float, field: str) -> Variant:
    if variant.recipe is None or _near(cost(variant.recipe), target):
        return variant
    if field in variant.fields:
        reason = f"{field} varies, so it cannot be adjusted: match by another field"
        return replace(variant, recipe=None, refused=reason)
    try:
        width = _width(lambda n: cost(read({**variant.fields, field: str(n)})), target)
    except InputError as error:
        reason = f"cannot be matched by {field}: {error}"
        return replace(variant, recipe=None, refused=reason)
    adjusted = {field: str(width)}
    return replace(variant, recipe=read({**variant.fields, **adjusted}), adjusted=adjusted)


def _near(value: float, target: float) -> bool:
    return abs(value - target) <= TOLERANCE * target


MOST_REFUSED = 256
"""So many widths in a row are tried until one is none that the recipe refuses."""


def _accepted(cost_of: Callable[[int], float], n: int) -> tuple[int, float]:
    """The first width from `n` on that the recipe allows, such as a multiple of heads; its cost."""
    for width in range(n, n + MOST_REFUSED - 1):
        try:
            return width, cost_of(width)
        except InputError:
            continue
    return n + MOST_REFUSED, cost_of(n + MOST_REFUSED)


def _width(cost: Callable[[int], float], target: float) -> int:
    """The width whose cost is nearest the target, a multiple of eight if that is near enough."""

    def cost_of(n: int) -> float:
        return _accepted(cost, n)[1]

    small, large = 1, 2
    while cost_of(large) < target:
        small, large = large, 2 * large
        if large > LARGEST:
            raise InputError(f"even {LARGEST:,} costs less")
    while large - small > 1:
        middle = (small + large) // 2
        small, large = (middle, large) if cost_of(middle) < target else (small, middle)
    rounded = [max(STEP, n // STEP * STEP) for n in (large, large + STEP - 1)]
    found: Mapping[int, float] = dict(_accepted(cost, n) for n in (*rounded, small, large))
    near = [n for n in found if _near(found[n], target)]
    if not near:
        nearest = min(found, key=lambda n: abs(found[n] - target))
        raise InputError(f"at {nearest} it costs {found[nearest]:,.0f}, wanted {target:,.0f} ± 2 %")
    return near[0]
