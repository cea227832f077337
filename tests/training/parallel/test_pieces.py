"""Pieces of tensors: each index in one process or in as many as hold it; whole again."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.parallel.threads import together
from torch import Tensor

from addnorm.training.parallel.pieces import Group, Piece, copied, gathered, summed


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 3))
def test_each_index_is_in_one_piece(size: int, units: int, each: int) -> None:
    """Or, if there are fewer units than processes, in as many as `copies` says."""
    if units < size and size % units:
        return

    def compute(group: Group) -> tuple[int, int, int]:
        piece = Piece(group, 0, units * each, units)
        return (*piece.bounds, piece.copies)

    counts = torch.zeros(units * each)
    for first, last, _ in (found := together(size, compute)):
        assert first % each == last % each == 0
        counts[first:last] += 1
    assert (counts == found[0][2]).all()


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 2), st.integers(1, 3))
def test_pieces_are_the_whole_again(size: int, axis: int, each: int) -> None:
    shape = [5, 5, 5]
    shape[axis] = 4 * each
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)

    def compute(group: Group) -> tuple[Tensor, torch.Size]:
        piece = Piece(group, axis, 4 * each, 4)
        own = piece.of(x)
        return piece.whole(own), piece.shape_of_whole(own.shape)

    for whole, shape_of_whole in together(size, compute):
        assert torch.equal(whole, x)
        assert shape_of_whole == x.shape


def test_copies_are_summed_with_their_like() -> None:
    def compute(group: Group) -> float:
        return float(Piece(group, 0, 2, 2).sum_of_copies(torch.tensor([10.0**group.rank])))

    assert together(4, compute) == [11, 11, 1100, 1100]


def test_one_unit_is_whole_in_every_process() -> None:
    def compute(group: Group) -> Tensor:
        piece = Piece.whole_of(torch.tensor(3.0), group)
        assert piece.copies == group.size
        return piece.whole(piece.of(torch.tensor(3.0)))

    assert together(3, compute) == [torch.tensor(3.0)] * 3


def test_a_product_in_pieces_has_the_outputs_and_gradients_of_one() -> None:
    """`Σ_r tanh(x W_r) V_r`, between f and g."""
    draw = torch.Generator().manual_seed(0)
    x, w, v = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((3, 4), (4, 7), (7, 5))
    )

    def loss(y: Tensor) -> Tensor:
        return (y * torch.arange(5.0)).sin().sum()

    def compute(group: Group) -> list[Tensor]:
        columns, rows = Piece(group, 1, 7, 7), Piece(group, 0, 7, 7)
        parts = [x.clone(), columns.of(w).clone(), rows.of(v).clone()]
        for part in parts:
            part.requires_grad_()
        y = summed(torch.tanh(copied(parts[0], group) @ parts[1]) @ parts[2], group)
        gradients = torch.autograd.grad(loss(y), parts)
        return [y.detach(), gradients[0], columns.whole(gradients[1]), rows.whole(gradients[2])]

    (alone,) = together(1, compute)
    for results in together(3, compute):
        for ours, theirs in zip(results, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_gathered_piece_has_its_part_of_the_gradient() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))

    def compute(group: Group) -> tuple[Tensor, Tensor]:
        piece = Piece(group, -1, 5, 5)
        own = piece.of(x).clone().requires_grad_()
        whole = gathered(own, piece)
        (gradient,) = torch.autograd.grad(whole.square().sum(), own)
        return whole.detach(), piece.whole(gradient)

    for whole, gradient in together(2, compute):
        assert torch.equal(whole, x)
        assert torch.equal(gradient, 2 * x)
