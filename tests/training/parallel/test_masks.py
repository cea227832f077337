"""The places of a process's rows among those of all."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.training.parallel.masks import Rows


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_all_processes_together_have_every_place_once(
    n: int, processes: int, each: int, copies: int
) -> None:
    """`each` neighbours for a row of the batch, and all of it in some copies."""
    whole = torch.arange(copies * each * n).view(copies, n, each)
    found: list[int] = []
    for rank in range(processes):
        first, last = n * rank // processes, n * (rank + 1) // processes
        if first == last:
            continue
        own = whole[:, first:last].flatten()
        places = Rows(first, last, n).places(len(own), copies)
        assert places is not None
        index, total = places
        assert total == whole.numel()
        assert torch.equal(index, own)
        found += index.tolist()
    assert sorted(found) == whole.flatten().tolist()


def test_other_rows_have_no_places() -> None:
    assert Rows(0, 2, 4).places(3, 1) is None
