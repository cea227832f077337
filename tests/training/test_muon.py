"""Muon against its definition in float64, and against torch's own."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from addnorm.training import muon
from addnorm.training.muon import COEFFICIENTS, Muon, of_one_shape, orthogonal

SHAPES = [(3, 5), (6, 6), (5, 3), (6, 6), (1, 4), (4, 1)]


def plain_orthogonal(g: Tensor) -> Tensor:
    """Jordan et al. 2024, by singular values: the quintic five times on each of them."""
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    s = s / g.norm()
    a, b, c = COEFFICIENTS
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def test_muon_equals_its_formula() -> None:
    """Several steps of all shapes, those of one shape together, in float64."""
    weights = parameters()
    lr, mu, decay = 0.3, 0.9, 0.1
    ours = Muon(weights, lr=lr, momentum=mu, weight_decay=decay)
    expected = [w.detach().clone() for w in weights]
    momenta = [torch.zeros_like(w) for w in expected]
    for _ in range(4):
        gradients = [torch.randn_like(w) for w in expected]
        for i, g in enumerate(gradients):
            weights[i].grad = g.clone()
            momenta[i] = mu * momenta[i] + (1 - mu) * g
            update = plain_orthogonal(mu * momenta[i] + (1 - mu) * g)
            rate = lr * max(1, g.shape[0] / g.shape[1]) ** 0.5
            expected[i] = (1 - lr * decay) * expected[i] - rate * update
        ours.step()
        torch.testing.assert_close([w.detach() for w in weights], expected, rtol=1e-9, atol=1e-9)


def test_the_state_of_torchs_muon_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule, and in bfloat16 the same rounding but for the order of sums."""
    monkeypatch.setattr(muon, "multiplies_natively", lambda *_: True)
    settings = {"lr": 0.1, "momentum": 0.95, "weight_decay": 0.1}
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    begun = torch.optim.Muon(theirs, **settings)
    middle: list[Tensor] = []
    for steps in range(3):
        if steps == 1:
            for mine, w in zip(ours, theirs, strict=True):
                mine.data.copy_(w.data)
            middle = [w.detach().clone() for w in theirs]
            here = Muon(ours, **settings)
            here.load_state_dict(deepcopy(begun.state_dict()))
        for mine, w in zip(ours, theirs, strict=True):
            w.grad = torch.randn_like(w)
            mine.grad = w.grad.clone()
        begun.step()
        if steps:
            here.step()
    for mine, w, before in zip(ours, theirs, middle, strict=True):
        assert (mine - w).norm() < 0.01 * (w - before).norm()


def test_a_full_matrix_has_singular_values_near_one() -> None:
    torch.manual_seed(2)
    singular_values = torch.linalg.svdvals(orthogonal(torch.randn(3, 20, 50, dtype=torch.float64)))
    assert singular_values.min() > 0.65
    assert singular_values.max() < 1.25


def test_groups_are_of_one_shape_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "AT_ONCE", 40)
    weights = [*parameters(), *parameters(torch.float32)]
    groups = list(of_one_shape(weights))
    assert sorted(id(w) for group in groups for w in group) == sorted(id(w) for w in weights)
    for group in groups:
        assert len({(w.shape, w.dtype) for w in group}) == 1
        assert len(group) == 1 or sum(w.numel() for w in group) <= 40


@pytest.mark.parametrize("native", [False, True])
def test_iterations_are_in_bfloat16_only_if_it_is_native(monkeypatch, native: bool) -> None:
    monkeypatch.setattr(muon, "multiplies_natively", lambda *_: native)
    dtype = orthogonal(torch.randn(1, 4, 4)).dtype
    assert dtype is (torch.bfloat16 if native else torch.float32)
    assert orthogonal(torch.randn(1, 4, 4, dtype=torch.float64)).dtype is torch.float64


def test_parameters_without_a_gradient_do_not_change() -> None:
    weights = parameters()
    before = weights[0].detach().clone()
    ours = Muon(weights, lr=0.1, weight_decay=0.5)
    for weight in weights[1:]:
        weight.grad = torch.zeros_like(weight)
    ours.step()
    assert torch.equal(weights[0], before)
    assert all(torch.isfinite(w).all() for w in weights)


def test_a_vector_is_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"Muon changes matrices, and one parameter has shape \[3\]"
    ):
        Muon([nn.Parameter(torch.zeros(3))])
