"""The largest numbers by groups are those of torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.generate.top_k import GROUP, ROOM, top_k


@given(
    rows=st.integers(0, 5),
    n=st.integers(1, 40 * GROUP),
    k=st.integers(1, 12),
    distinct=st.sampled_from([2, 50, 2**20]),
    special=st.lists(st.sampled_from([math.inf, -math.inf, math.nan]), max_size=20),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_values_are_those_of_torch_at_their_places(
    rows: int,
    n: int,
    k: int,
    distinct: int,
    special: list[float],
    dtype: torch.dtype,
    seed: int,
) -> None:
    k = min(k, n)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(distinct, (rows, n), generator=generator).to(dtype)
    for value in special if rows else []:
        row, place = (int(torch.randint(m, (), generator=generator)) for m in (rows, n))
        x[row, place] = value
    values, places = top_k(x, k)
    torch.testing.assert_close(values, x.topk(k).values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values, x.gather(1, places), rtol=0, atol=0, equal_nan=True)
    assert all(len({*row}) == k for row in places.tolist())


def test_places_of_distinct_numbers_are_those_of_torch() -> None:
    n, k = ROOM * 4 * GROUP + 7, 4
    x = torch.stack([torch.randperm(n).float() for _ in range(300)])
    assert torch.equal(top_k(x, k)[1], x.topk(k).indices)
    strided = torch.stack([x, x], dim=-1)[..., 0]
    assert torch.equal(top_k(strided, k)[1], x.topk(k).indices)


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        top_k(torch.zeros(2, 3), 4)
