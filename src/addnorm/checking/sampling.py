"""A sample of the matrix that covers every part, every variant and every pair of parts."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, islice

from addnorm.checking.matrix import Cell

Goal = tuple[object, ...]

VARIANT = "variant"

TRIED = 24
"""The number of candidate cells for each coverage goal."""


def sample(n: int, seed: int, among: Sequence[Cell]) -> list[Cell]:
    """Return a random sample of `n` cells, determined by the seed; all cells if there are fewer.

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
    """Yield the indices of cells that cover every reachable goal, by a greedy search."""
    having: dict[Goal, list[int]] = {}
    for i, cell in enumerate(among):
        for goal in goals(cell):
            having.setdefault(goal, []).append(i)

    @cache
    def is_allowed(i: int) -> bool:
        return among[i].refusal() is None

    order = list(having)
    draw.shuffle(order)
    order.sort(key=_rank)
    missing, n = set(order), 0
    for goal in order:
        if goal not in missing or n >= most:
            continue
        candidates = _allowed(having[goal], is_allowed, draw)
        if candidates:
            best = max(candidates, key=lambda i: len(missing.intersection(goals(among[i]))))
            missing.difference_update(goals(among[best]))
            n += 1
            yield best


def _rank(goal: Goal) -> int:
    """The rank of a goal: variants, mixers and parts come before pairs, also in small samples."""
    if goal[0] == VARIANT:
        return 2 if len(goal) == 4 else 0
    return int(isinstance(goal[1], tuple))


def _allowed(
    indices: list[int], is_allowed: Callable[[int], bool], draw: random.Random
) -> list[int]:
    """Return a few valid cells; an empty list only if all are invalid."""
    valid = (i for i in draw.sample(indices, len(indices)) if is_allowed(i))
    return list(islice(valid, TRIED))
