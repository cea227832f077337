"""A default sample covers every part, every variant and every allowed pair."""

from functools import cache
from time import process_time

import pytest

from addnorm.checking.matrix import Cell, cells
from addnorm.checking.sampling import VARIANT, goals, sample

CELLS = list(cells())


@cache
def everything() -> set[tuple[object, ...]]:
    return reached(CELLS)


def reached(some: list[Cell]) -> set[tuple[object, ...]]:
    return {goal for cell in some if not cell.refusal() for goal in goals(cell)}


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_of_480_has_everything_in_it(seed: int) -> None:
    start = process_time()
    chosen = sample(480, seed, CELLS)
    assert process_time() - start < 30
    assert len({cell.id for cell in chosen}) == 480
    missing = everything() - reached(chosen)
    assert {len(goal) for goal in missing} <= {4}, "all but some variants in a further architecture"
    further = sum(len(goal) == 4 for goal in everything())
    assert len(missing) < further / 5
    assert everything() == reached(sample(540, seed, CELLS))


def test_it_is_always_the_same_for_a_seed() -> None:
    drawn = sample(5, 0, CELLS)
    assert drawn == sample(5, 0, CELLS)
    assert drawn != sample(5, 1, CELLS)
    assert len(sample(9, 0, CELLS[:3])) == 3


def test_a_small_sample_has_as_much_as_fits() -> None:
    assert len(sample(40, 0, CELLS)) == 40


@pytest.mark.long
def test_a_quarter_of_the_sample_has_half_of_everything() -> None:
    assert len(reached(sample(135, 0, CELLS))) > 0.5 * len(everything())


def test_goals() -> None:
    plain = next(cell for cell in CELLS if not cell.variant and not cell.mixer)
    found = [*goals(plain)]
    assert (False, ("position", "sinusoidal"), ("norm", dict(plain.parts)["norm"])) in found
    varied = next(cell for cell in CELLS if cell.variant)
    assert [*goals(varied)] == [
        (VARIANT, varied.variant, None),
        (VARIANT, varied.variant, None, varied.family),
    ]
