"""torch's optimisers without its compiler step as torch's own do, to the bit."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from addnorm.training import torch_optimizers
from addnorm.training.torch_optimizers import without_compiler

KINDS: list[tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer]]] = [
    (torch_optimizers.AdamW, torch.optim.AdamW),
    (torch_optimizers.Adadelta, torch.optim.Adadelta),
    (without_compiler(torch.optim.SGD), torch.optim.SGD),
]


def stepped(kind: Any, steps: int, state: Any = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A linear layer after some steps, of which the last ones follow a restored state."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 5)
    optimizer = kind([{"params": [layer.weight]}, {"params": [layer.bias]}], lr=0.1)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return layer, optimizer


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_it_steps_as_torch_does(
    ours: type[torch.optim.Optimizer], theirs: type[torch.optim.Optimizer]
) -> None:
    assert issubclass(ours, theirs)
    assert ours.__name__ == theirs.__name__
    state = None
    for steps in (0, 1, 3):
        (layer, optimizer), (same, torchs) = (stepped(k, steps, state) for k in (ours, theirs))
        for a, b in zip(layer.parameters(), same.parameters(), strict=True):
            assert torch.equal(a, b)
        state = torchs.state_dict()
        assert str(optimizer.state_dict()) == str(state)


@pytest.mark.parametrize("kind", [ours for ours, _ in KINDS])
def test_a_closure_is_called_with_gradients(kind: type[torch.optim.Optimizer]) -> None:
    layer = nn.Linear(2, 1)
    optimizer: Any = kind(layer.parameters(), lr=0.1)  # pyright: ignore[reportCallIssue]

    def closure() -> float:
        loss = layer(torch.ones(2)).square().sum()
        loss.backward()
        return loss.item()

    before = layer.weight.detach().clone()
    assert optimizer.step(closure) > 0
    assert not torch.equal(layer.weight, before)
