"""Adjusting a width so that variants match the first one's parameters or FLOP per token."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from reprlib import repr as short
from typing import Any

from addnorm.errors import InputError, choices
from addnorm.inspect.flops import forward_flops
from addnorm.lab.studies.options import DEFAULTS, Match
from addnorm.lab.studies.variants import Reader, Variant
from addnorm.runs.files.weights import build_model, count_parameters
from addnorm.runs.recipes.recipe import RECIPE, Recipe
from addnorm.runs.train.train_run import TrainingSetup

Cost = Callable[[Recipe], float]
"""The cost of a recipe's model."""

TOLERANCE = 0.02
"""The largest relative difference in cost to the first variant."""

LARGEST = 2**20
STEP = 8
"""Widths are multiples of this, which are faster, if one of them is near enough."""


def matched(
    reader: Reader, variants: list[Variant], cost: Cost, field: str = DEFAULTS.match_by
) -> list[Variant]:
    """The variants, with `field` changed so that each costs within 2 % of the first.

    A variant that no width makes equal is refused, with the reason.
    """
    first = variants[0].recipe
    assert first is not None
    check_width(first, field)
    target = cost(first)
    return [
        variants[0],
        *(_matched(reader, variant, cost, target, field) for variant in variants[1:]),
    ]


def check_width(recipe: Recipe, field: str) -> None:
    """Raise `InputError`, naming the nearest, unless `field` names an integer of a recipe."""
    value: Any = recipe
    tables: list[str] = []
    for name in field.split("."):
        names = [field.name for field in fields(value)] if is_dataclass(value) else []
        if name not in names:
            place = ".".join(tables) or "the recipe"
            valid = choices(name, names) if names else ""
            raise InputError(f"`match_by = {field}`: {place} has no {name!r}.{valid}")
        value = getattr(value, name)
        tables.append(name)
    if isinstance(value, bool) or not (value is None or isinstance(value, int)):
        raise InputError(f"`match_by = {field}`: {short(value)} is not an integer")


def cost_of(match: Match, variants: Sequence[Variant]) -> Cost:
    """Return a function from a recipe to its model's cost, given its vocabulary and data.

    The data are read once for all recipes that read the same.
    """
    first = variants[0].recipe
    assert first is not None
    prepared: dict[str, TrainingSetup] = {}

    def cost(recipe: Recipe) -> float:
        tree = RECIPE.dump_python(recipe, mode="json")
        inputs = {name: tree[name] for name in ("data", "tokenizer")}
        inputs |= {name: tree["train"][name] for name in ("batching", "start")}
        key = json.dumps(inputs, sort_keys=True)
        if key not in prepared:
            prepared[key] = TrainingSetup(recipe)
        if match == "parameters":
            return count_parameters(recipe, prepared[key].tokenizers, prepared[key].labels)
        return flops_per_token(recipe, prepared[key])

    cost(first)
    return cost


def flops_per_token(recipe: Recipe, prepared: TrainingSetup) -> float:
    """Return the FLOP of a forward pass per target token, measured on the first batch."""
    batch = next(iter(prepared.loaders.train.batches(0)))
    model = build_model(recipe, prepared.tokenizers, prepared.labels)
    return forward_flops(model, batch) / max(batch.n_tokens, 1)


def _matched(reader: Reader, variant: Variant, cost: Cost, target: float, field: str) -> Variant:
    if variant.recipe is None or _near(cost(variant.recipe), target):
        return variant
    if field in variant.fields:
        return variant.refuse(f"{field} varies, so it cannot be adjusted: match by another field")
    try:
        width = _width(lambda n: cost(reader({**variant.fields, field: str(n)})), target)
    except InputError as error:
        return variant.refuse(f"cannot be matched by {field}: {error}")
    adjusted = {field: str(width)}
    return replace(variant, recipe=reader({**variant.fields, **adjusted}), adjusted=adjusted)


def _near(value: float, target: float) -> bool:
    return abs(value - target) <= TOLERANCE * target


MOST_REFUSED = 256
"""The number of widths in a row that are tried before none is found valid."""


def _accepted(cost_of: Callable[[int], float], n: int) -> tuple[int, float]:
    """The first width from `n` on that the recipe allows, with its cost."""
    for width in range(n, n + MOST_REFUSED - 1):
        try:
            return width, cost_of(width)
        except InputError:
            continue
    return n + MOST_REFUSED, cost_of(n + MOST_REFUSED)


def _width(cost: Callable[[int], float], target: float) -> int:
    """The width with the cost nearest the target; a multiple of eight if that is near enough."""

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
    costs: Mapping[int, float] = dict(_accepted(cost, n) for n in (*rounded, small, large))
    near = [n for n in costs if _near(costs[n], target)]
    if not near:
        nearest = min(costs, key=lambda n: abs(costs[n] - target))
        raise InputError(f"at {nearest} it costs {costs[nearest]:,.0f}, wanted {target:,.0f} ± 2 %")
    return near[0]
