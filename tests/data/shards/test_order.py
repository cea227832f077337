"""The order: a permutation of any size, whose places are known one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.shards.order import Permutation


@given(n=st.integers(1, 500), key=st.text(max_size=5))
def test_it_is_a_permutation(n: int, key: str) -> None:
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


@given(n=st.integers(1, 2**61), place=st.integers(0, 2**61))
def test_a_place_does_not_depend_on_the_others(n: int, place: int) -> None:
    place %= n
    places = np.array([0, place, n - 1, place])
    order = Permutation(n, "key")
    numbers = order(places).tolist()
    assert numbers[1] == numbers[3] == order(np.array([place])).item()
    assert all(0 <= number < n for number in numbers)


def test_keys_give_orders_without_likeness() -> None:
    """Fixed points and neighbours that stay neighbours are as rare as by chance."""
    n = 10_000
    first, second = (Permutation(n, key)(np.arange(n)) for key in ("a", "b"))
    assert (first == second).sum() < 10
    assert (np.diff(first) == 1).sum() < 10
    thirds = np.histogram2d(np.arange(n) * 3 // n, first * 3 // n, bins=3)[0]
    assert abs(thirds - n / 9).max() < 5 * (n / 9) ** 0.5


def test_saved_runs_keep_their_order() -> None:
    places = np.arange(6)
    assert Permutation(10, "seed 1, epoch 0")(places).tolist() == SMALL
    assert Permutation(10**12, "seed 1, epoch 0")(places).tolist() == LARGE


SMALL = [0, 3, 2, 4, 6, 1]
LARGE = [665786097758, 419764220764, 660852717081, 103795339622, 733514921294, 577856944411]
