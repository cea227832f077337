"""Cross-entropy over pieces of the vocabulary is that of the whole."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.parallel.threads import together
from torch import Tensor
from torch.nn import functional as F

from addnorm.data.ids.encoding import IGNORE
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full
from addnorm.training.loss import cross_entropy_sum
from addnorm.training.parallel.loss import loss_and_gradient, vocabulary_cross_entropy_sum
from addnorm.training.parallel.pieces import Group, Piece


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(3, 9),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([torch.float64, torch.bfloat16]),
    st.integers(0, 9),
)
def test_it_is_that_of_the_whole_vocabulary(
    size: int, vocabulary: int, rows: int, smoothing: float, dtype: torch.dtype, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = (30 * torch.randn(rows, vocabulary, generator=draw)).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=draw)
    targets[torch.rand(rows, generator=draw) < 0.3] = IGNORE

    def compute(group: Group) -> tuple[Tensor, Tensor]:
        piece = Piece(group, -1, vocabulary, vocabulary)
        loss, gradient = loss_and_gradient(piece.of(logits), targets, smoothing, piece)
        return loss, piece.whole(gradient)

    wide = logits.to(torch.float64 if dtype is torch.float64 else torch.float32).requires_grad_()
    expected = F.cross_entropy(
        wide, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )
    expected.backward()
    assert wide.grad is not None
    tolerance = 1e-12 if dtype is torch.float64 else 1e-2
    for loss, gradient in together(size, compute):
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=tolerance)
        torch.testing.assert_close(gradient.to(wide), wide.grad, rtol=tolerance, atol=tolerance)


def test_a_head_learns_as_one_process_does() -> None:
    torch.manual_seed(0)
    head = TokenHead(4, 7, bias=True, softcap=3.0, scale=0.5).double()
    torch.nn.init.normal_(head.weight)
    x, targets = torch.randn(2, 3, 4, dtype=torch.float64), torch.randint(7, (2, 3))
    ctx = Context.over(x, Full())

    def compute(group: Group) -> list[Tensor]:
        rows = Piece(group, 0, 7, 7)
        part = TokenHead(4, 7, bias=True, softcap=3.0, scale=0.5).double()
        part.weight = torch.nn.Parameter(rows.of(head.weight.detach()).clone())
        assert head.bias is not None
        part.bias = torch.nn.Parameter(rows.of(head.bias.detach()).clone())
        own = x.clone().requires_grad_()
        loss = vocabulary_cross_entropy_sum(part, own, ctx, targets, 0.1, Piece(group, -1, 7, 7))
        of_x, *others = torch.autograd.grad(loss, [own, part.weight, part.bias])
        return [loss.detach(), of_x, *map(rows.whole, others)]

    own = x.clone().requires_grad_()
    loss = cross_entropy_sum(head(own, ctx), targets, 0.1)
    expected = [loss.detach(), *torch.autograd.grad(loss, [own, *head.parameters()])]
    for results in together(2, compute):
        for ours, theirs in zip(results, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
