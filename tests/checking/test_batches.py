"""Batches: padded texts can be recovered."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.checking.batches import SIDES, VOCABULARY, drawn, flat, padded, pieces, row

TEXTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6), min_size=1)


@given(TEXTS, st.sampled_from(SIDES), st.integers(0, 99))
def test_the_real_tokens_of_a_batch_are_the_texts(
    texts: list[list[int]], side: str, seed: int
) -> None:
    tokens, valid = padded(texts, side, random.Random(seed))  # type: ignore[arg-type]
    assert tokens[valid].tolist() == flat(texts)
    assert valid.sum(1).tolist() == [len(text) for text in texts]
    edges = {"right": valid[:, 0], "left": valid[:, -1], "between": valid[0, :0]}
    assert edges[side].all()
    assert int(tokens.max()) < VOCABULARY


@given(st.integers(2, 9), st.integers(0, 99))
def test_pieces_are_the_whole(n: int, seed: int) -> None:
    parts = pieces(n, random.Random(seed))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert all(part.stop > part.start for part in parts)
    assert len(parts) > 1


def test_drawn() -> None:
    assert drawn(5, random.Random(1)) == drawn(5, random.Random(1))
    assert torch.equal(row([1, 2]), torch.tensor([[1, 2]]))
