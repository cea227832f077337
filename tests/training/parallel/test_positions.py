"""The positions of a text that each process has: every one once; whole again, with its gradient."""

from threading import Barrier

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.parallel.threads import ThreadGroup, together
from torch import Tensor

from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.positions import Positions, PositionsOfAxis


def alone(rank: int, size: int) -> Group:
    """A process of a group, which exchanges nothing here."""
    return ThreadGroup(rank, [None] * size, Barrier(1))


@given(st.integers(1, 40), st.integers(1, 6))
def test_each_position_is_in_one_process(total: int, size: int) -> None:
    parts = [Positions(alone(rank, size), total) for rank in range(size)]
    places = torch.cat([part.own[: part.counts[rank]] for rank, part in enumerate(parts)])
    assert sorted(places.tolist()) == [*range(total)]
    for part in parts:
        others = part.others.tolist()
        assert sorted({*others, *part.own.tolist()}) == [*range(total)]
        assert part.stands_in == (len(others) == total)
        assert part.own.tolist() == sorted(part.own.tolist())


@given(st.integers(1, 6), st.integers(1, 5))
def test_all_have_as_many_pairs_under_a_causal_mask(size: int, chunk: int) -> None:
    parts = [Positions(alone(rank, size), 2 * size * chunk) for rank in range(size)]
    assert len({int((part.own + 1).sum()) for part in parts}) == 1


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2))
def test_parts_are_the_whole_again_with_gradients_of_all(size: int, total: int, axis: int) -> None:
    """The gradient of each process is of its own function of the whole."""
    shape = [2, 2, 2]
    shape[axis] = total
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def compute(group: Group) -> tuple[Tensor, Tensor]:
        positions = Positions(group, total)
        own = positions.of(x, axis).clone().requires_grad_()
        whole = positions.whole(own, axis)
        with_others = positions.with_others(own, axis)
        assert torch.equal(with_others.narrow(axis, len(positions.others), own.shape[axis]), own)
        (gradient,) = torch.autograd.grad((whole**2).sum() * (group.rank + 1), own)
        if not positions.stands_in:
            expected = 2 * positions.of(x, axis) * sum(range(1, size + 1))
            torch.testing.assert_close(gradient, expected)
        return whole.detach(), gradient

    for whole, _ in together(size, compute):
        assert torch.equal(whole, x)


def test_a_piece_has_its_queries_and_its_order_of_keys() -> None:
    positions = Positions(alone(1, 2), 7)
    weights = torch.arange(49).view(1, 1, 7, 7)
    piece = PositionsOfAxis(positions, 2, keys=3)
    own = piece.of(weights)
    keys = torch.cat([positions.others, positions.own])
    assert torch.equal(own, weights[:, :, positions.own][..., keys])
    assert piece.shape_of_whole(own.shape) == weights.shape
    assert piece.fits(own.shape)
    assert not piece.fits(weights.shape)
    assert not piece.fits(torch.Size([len(positions.own)]))
