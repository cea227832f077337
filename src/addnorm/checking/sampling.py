"""A sample of the matrix that covers every part, every variant and every pair of parts."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

from addnorm.checking.matrix import Cell

Goal = tuple[object, ...]

VARIANT = "variant"

TRIED = 24
"""The number of candidate cells for each coverage goal."""


def sample(n: int, seed: int, among: Sequence[Cell]) -> list[Cell]:
    """A random sample of `n` cells, determined by the seed; all cells if there are no more.

    It begins with cells that together cover every variant, every mixer, every part, and every
    compatible pair of parts; then come variants in further architectures; the rest are random.
    """
    draw = random.Random(seed)
    if n >= len(among):
        return list(among)
    chosen = dict.fromkeys(_covering(among, draw, n))
    rest = [i for i in range(len(among)) if i not in chosen]
    chosen |= dict.fromkeys(draw.sample(rest, max(n - len(chosen), 0)))
    return [among[i] for i in [*chosen][:n]]


def goals(cell: Cell) -> Iterator[Goal]:
    """The coverage goals that a cell meets: its variant or mixer, its parts and their pairs."""
    if cell.variant or cell.mixer:
        yield VARIANT, cell.variant, cell.mixer
        yield VARIANT, cell.variant, cell.mixer, cell.family
    if not cell.variant:
        yield from ((cell.mixer is not None, *part) for part in cell.parts)
        yield from ((cell.mixer is not None, *pair) for pair in combinations(cell.parts, 2))
        yield from ((cell.family, *part) for part in cell.parts)


def _covering(among: Sequence[Cell], draw: random.Random, most: int) -> Iterator[int]:
    """Yield indices of cells that cover every reachable goal, by a greedy search."""
    having: dict[Goal, list[int]] = {}
    for i, cell in enumerate(among):
        for goal in goals(cell):
            having.setdefault(goal, []).append(i)
    allowed: dict[int, bool] = {}

    def is_allowed(i: int) -> bool:
        if i not in allowed:
            allowed[i] = among[i].refusal() is None
        return allowed[i]

    order = list(having)
    draw.shuffle(order)
    order.sort(key=_rank)
    missing, found = set(order), 0
    for goal in order:
        if goal not in missing or found >= most:
            continue
        some = _some_allowed(having[goal], is_allowed, draw)
        if some:
            best = max(some, key=lambda i: len(missing.intersection(goals(among[i]))))
            missing.difference_update(goals(among[best]))
            found += 1
            yield best


def _rank(goal: Goal) -> int:
    """Variants, mixers and parts come first, so that small samples have them; then pairs."""
    if goal[0] == VARIANT:
        return 2 if len(goal) == 4 else 0
    return int(isinstance(goal[1], tuple))


def _some_allowed(places: list[int], is_allowed: object, draw: random.Random) -> list[int]:
    """A few valid cells; an empty list only if all are invalid."""
    assert callable(is_allowed)
    found: list[int] = []
    for i in draw.sample(places, len(places)):
        if is_allowed(i):
            found.append(i)
        if len(found) == TRIED:
            break
    return found
