"""A loss in groups of rows: that of all rows at once, with the gradient of what is learnt."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.training.grouped_loss import in_groups


def squares(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`Σ (z - t)²`, and its gradient."""
    apart = logits - targets[:, None]
    return (apart**2).sum(), 2 * apart


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("frozen", [False, True])
def test_of_any_size_it_is_that_of_all_rows(size: int, frozen: bool) -> None:
    head = nn.Linear(4, 5).double()
    head.bias.requires_grad_(not frozen)
    rows = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(7.0, dtype=torch.float64)
    learnt = [rows, *(p for p in head.parameters() if p.requires_grad)]
    expected = squares(head(rows), targets)[0]
    found = in_groups(head, rows, targets, squares, size, head)
    assert_close(found, expected)
    assert_close(torch.autograd.grad(3 * found, learnt), torch.autograd.grad(3 * expected, learnt))
    with torch.no_grad():
        alone = in_groups(head, rows, targets, squares, size, head)
    assert_close(alone, expected)
    assert not alone.requires_grad
