"""The contrastive head: its losses against their definitions in float64, and rows by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.nn.contrastive import ContrastiveHead, ContrastiveHeadConfig
from addnorm.nn.vectors import VectorHeadConfig


def head(**fields: object) -> ContrastiveHead:
    config = ContrastiveHeadConfig(text=VectorHeadConfig(width=3), **fields)  # type: ignore[arg-type]
    return config.build(4).double().eval()


def vectors(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    u, v = torch.randn(2, n, 3, generator=generator, dtype=torch.float64)
    return u, v


def softmax(z: list[list[float]]) -> float:
    """Radford et al. 2021, fig. 3: the mean of both directions, summed over the pairs."""
    total, n = 0.0, len(z)
    for i in range(n):
        row = sum(math.exp(z[i][j]) for j in range(n))
        column = sum(math.exp(z[j][i]) for j in range(n))
        total -= math.log(math.exp(z[i][i]) / row) + math.log(math.exp(z[i][i]) / column)
    return total / 2


def sigmoid(z: list[list[float]]) -> float:
    """Zhai et al. 2023, eq. 1, summed over the pairs."""
    total = 0.0
    for i, row in enumerate(z):
        for j, logit in enumerate(row):
            total -= math.log(1 / (1 + math.exp(-logit if i == j else logit)))
    return total


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("loss", "definition"), [("softmax", softmax), ("sigmoid", sigmoid)])
@torch.no_grad()
def test_losses_are_their_definitions(n: int, loss: str, definition: object) -> None:
    made, (u, v) = head(loss=loss, log_scale=0.7, bias=-0.4), vectors(n)
    z = made(u, v)
    for i in range(n):
        for j in range(n):
            cosine = float(u[i] @ v[j] / (u[i].norm() * v[j].norm()))
            assert abs(float(z[i, j]) - (math.exp(0.7) * cosine - 0.4)) < 1e-6
    expected = definition(z.tolist())  # type: ignore[operator]
    assert abs(float(made.loss_sum(z, torch.arange(n))) - expected) < 1e-10


@torch.no_grad()
def test_rows_computed_by_hand() -> None:
    """With z = [[2, 0], [1, 3]] each loss is a sum of log(1 + exp(-d)) over differences d."""
    z, order = torch.tensor([[2.0, 0.0], [1.0, 3.0]]).double(), torch.arange(2)
    of_softmax = (2 * 0.126928011 + 0.313261688 + 0.048587352) / 2
    assert abs(float(head().loss_sum(z, order)) - of_softmax) < 1e-8
    of_sigmoid = 0.126928011 + 0.693147181 + 1.313261688 + 0.048587352
    assert abs(float(head(loss="sigmoid").loss_sum(z, order)) - of_sigmoid) < 1e-8


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_order_of_texts_is_that_of_the_targets(loss: str) -> None:
    made, (u, v) = head(loss=loss), vectors(4)
    order = torch.tensor([2, 0, 3, 1])
    moved = made.loss_sum(made(u, v[order.argsort()]), order)
    assert_close(moved, made.loss_sum(made(u, v), torch.arange(4)))


def test_a_scale_above_a_hundred_is_taken_back_and_has_a_gradient() -> None:
    made, (u, v) = head(log_scale=9.0), vectors(3)
    cosines = made(u, v) / math.exp(9)
    made.keep_bounds()
    assert_close(made(u, v), 100 * cosines, rtol=1e-6, atol=1e-8)
    made(u, v).square().sum().backward()
    assert made.logit_scale.grad is not None
    assert made.logit_scale.grad > 0


def test_a_scale_that_is_not_learned_stays() -> None:
    made = head(log_scale=9.0)
    made.logit_scale.requires_grad_(False)
    made.keep_bounds()
    assert made.logit_scale == 9


def test_training_by_sigmoid_leaves_the_scale_as_it_is() -> None:
    """That of SigLIP's published folders is 117."""
    made, (u, v) = head(loss="sigmoid", log_scale=4.7658), vectors(3)
    expected = made(u, v)
    made.keep_bounds()
    assert torch.equal(made(u, v), expected)
    made(u, v).sum().backward()
    assert made.logit_scale.grad is not None
    assert made.logit_scale.grad != 0


def test_pictures_without_texts_are_refused() -> None:
    made, (u, v) = head(), vectors(3)
    with pytest.raises(InputError, match="3 pictures and 2 texts"):
        made.loss_sum(made(u, v[:2]), torch.arange(3))
