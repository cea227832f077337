"""The fast shuffle is `random.shuffle`, and a plan made on demand is the plan made at once."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.batches import shuffle as order
from addnorm.data.batches.batch import chunks, epoch_random
from addnorm.data.batches.shuffle import shuffled
from addnorm.data.batches.windows import Cuts

BORDERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 1023, 1024, 1025]


@pytest.mark.parametrize("n", BORDERS)
@pytest.mark.parametrize("block", [7, 2**16])
def test_it_is_the_order_of_random_shuffle(
    n: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "BLOCK", block)
    for seed in range(3):
        expected = list(range(n))
        Random(seed).shuffle(expected)
        assert shuffled(Random(seed), n).tolist() == expected


@pytest.mark.slow
def test_it_is_the_order_of_random_shuffle_for_many() -> None:
    expected = list(range(300_000))
    Random(3).shuffle(expected)
    assert shuffled(Random(3), len(expected)).tolist() == expected


@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 5), st.sampled_from([None, 0, 7]))
def test_batches_made_on_demand_are_those_made_at_once(
    n: int, seq_len: int, batch_size: int, seed: int | None
) -> None:
    """Cut, shuffle and group, as it reads: what is left over stays last."""
    rng = epoch_random(seed, 3)
    first = rng.randrange(n) if rng else 0
    cuts = [*range(first, first + n, seq_len), first + n]
    windows = [range(i % n, i % n + j - i) for i, j in pairwise(cuts)]
    rest = [windows.pop()] if n % seq_len else []
    if rng:
        rng.shuffle(windows)
    expected = chunks(windows + rest, batch_size)
    again = epoch_random(seed, 3)
    first = again.randrange(n) if again else 0
    found = Cuts(n, first, seq_len, batch_size, shuffled(again, n // seq_len) if again else None)
    assert list(found) == expected
    assert found[1:] == expected[1:]
    assert len(found) == len(expected)
    with pytest.raises(IndexError):
        found[len(expected)]
