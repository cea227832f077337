"""Examples in arrays are the examples that were put in, in as few bytes as they need."""

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.ids.compact import Compact, Encoded, narrow

ids = st.lists(st.integers(0, 70_000), max_size=6)
examples = st.lists(st.tuples(ids, st.lists(st.integers(-100, 9), max_size=4)), max_size=6)


@given(examples)
def test_what_comes_out_is_what_went_in(pairs: list[tuple[list[int], list[int]]]) -> None:
    plain = [Encoded(7 * i, *pair) for i, pair in enumerate(pairs)]
    found = Compact.of(plain)
    assert list(found) == plain
    assert found == plain
    assert found[1:] == plain[1:]
    assert [found[-1]] == plain[-1:] if plain else not found
    with pytest.raises(IndexError):
        found[len(plain)]


def test_it_differs_where_an_id_differs() -> None:
    assert Compact.of([Encoded(0, [1, 2], [3])]) != [Encoded(0, [1, 9], [3])]
    assert Compact.of([Encoded(0, [1, 2], [3])]) != []


def test_values_stay_with_their_examples() -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    found = Compact.of(Encoded(i, [i], [], values=one) for i, one in enumerate(values))
    assert [one.values for one in found] == values


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 7))
def test_documents_and_their_pieces(lengths: list[int], most: int) -> None:
    plain = [
        Encoded(
            n, [100 * n + i for i in range(length)], [100 * n + i for i in range(1, length + 1)]
        )
        for n, length in enumerate(lengths)
    ]
    found = Compact.as_documents(plain)
    assert found == plain
    assert Compact.as_documents(found) is found
    assert list(found.cut(most)) == [
        Encoded(e.index, e.tokens[i : i + most], e.targets[i : i + most])
        for e in plain
        for i in range(0, len(e.tokens), most)
    ]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([], np.uint16),
        ([0, 65_535], np.uint16),
        ([65_536], np.uint32),
        ([2**32], np.int64),
        ([-100, 32_767], np.int16),
        ([-100, 32_768], np.int32),
    ],
)
def test_numbers_take_the_bytes_they_need(numbers: list[int], dtype: type) -> None:
    found = narrow(array("q", numbers))
    assert found.dtype == dtype
    assert found.tolist() == numbers
