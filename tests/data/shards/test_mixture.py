"""Mixtures: shares by weight, each row once in a round, nothing that depends on other places."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.data.shards.mixture import MixedRow, Mixture, Permutation, shares
from addnorm.errors import InputError

ROWS = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)


@given(rows=ROWS, seed=st.integers(0, 9) | st.none(), epoch=st.integers(0, 3))
def test_an_epoch_without_weights_has_each_row_once(
    rows: tuple[int, ...], seed: int | None, epoch: int
) -> None:
    mixture = Mixture(rows, None, seed)
    places = mixture.at(epoch, 0, len(mixture))
    expected = {MixedRow(f, epoch, i) for f, n in enumerate(rows) for i in range(n)}
    assert len(places) == len(mixture) == len(expected)
    assert {*places} == expected


@settings(max_examples=25)
@given(rows=ROWS, data=st.data(), seed=st.integers(0, 9))
def test_with_weights_each_row_comes_once_in_a_round(
    rows: tuple[int, ...], data: st.DataObject, seed: int
) -> None:
    weights = data.draw(st.tuples(*[st.floats(0.5, 2.0) for _ in rows]))
    if min(shares(sum(rows), weights)) == 0:
        return
    mixture = Mixture(rows, weights, seed)
    epochs = 4
    places = [place for e in range(epochs) for place in mixture.at(e, 0, len(mixture))]
    assert max(Counter(places).values()) == 1
    for folder, (n, count) in enumerate(zip(rows, mixture.counts, strict=True)):
        numbers = sorted(p.round * n for p in places if p.folder == folder)
        assert len(numbers) == epochs * count
        whole = epochs * count // n  # complete rounds have every row
        for which in range(whole):
            assert sum(p.folder == folder and p.round == which for p in places) == n


@settings(max_examples=40)
@given(rows=ROWS, start=st.integers(0, 30), epoch=st.integers(0, 2))
def test_a_place_does_not_depend_on_where_reading_begins(
    rows: tuple[int, ...], start: int, epoch: int
) -> None:
    mixture = Mixture(rows, None, 3)
    start = min(start, len(mixture))
    assert mixture.at(epoch, 0, len(mixture))[start:] == mixture.at(epoch, start, len(mixture))


def test_shares_follow_the_weights() -> None:
    assert shares(10, (3, 1)) == (8, 2)
    assert shares(7, (1, 1, 1)) == (3, 2, 2)
    assert sum(shares(1000, (0.2, 0.3, 0.07))) == 1000


def test_a_place_of_a_huge_mixture() -> None:
    mixture = Mixture((10**12, 10**11), (1.0, 3.0), 1)
    first, second = mixture.at(5, 10**9, 10**9 + 2)
    assert first != second
    assert [first] == mixture.at(5, 10**9, 10**9 + 1)


def test_a_weight_without_a_row_is_refused() -> None:
    with pytest.raises(InputError, match="none of the"):
        Mixture((5, 5), (1.0, 1e-9), 0)


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
