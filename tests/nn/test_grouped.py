"""Grouped products of experts against one call for each expert, gradients included."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.grouped import can_group, grouped_feedforward

KINDS = {
    "gated": GatedFeedForwardConfig(d_ff=24),
    "gated with bias": GatedFeedForwardConfig(d_ff=24, bias=True, activation="gelu"),
    "mlp": FeedForwardConfig(d_ff=24),
    "mlp without bias": FeedForwardConfig(d_ff=24, bias=False, activation="gelu"),
}
COUNTS = [3, 0, 1, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_call_for_each_expert(kind: str) -> None:
    experts = [KINDS[kind].build(16) for _ in COUNTS]
    x = torch.randn(sum(COUNTS), 16, requires_grad=True)
    parameters = [x, *(p for expert in experts for p in expert.parameters())]
    assert can_group(experts, x)
    ours = grouped_feedforward(x, experts, torch.tensor(COUNTS))
    parts = zip(experts, x.split(COUNTS), strict=True)
    theirs = torch.cat([expert(part) for expert, part in parts])
    assert_close(ours, theirs)
    dy = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(y, parameters, dy) for y in (ours, theirs))
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_is_not_grouped() -> None:
    x, plain = torch.randn(4, 16), [KINDS["mlp"].build(16) for _ in range(2)]
    assert can_group(plain, x)
    assert not can_group([expert.double() for expert in plain], x.double())
    assert not can_group([nn.Identity(), nn.Identity()], x)
    assert not can_group([KINDS["mlp"].build(16), KINDS["gated"].build(16)], x)
    assert not can_group([FeedForwardConfig(d_ff=n).build(16) for n in (8, 16)], x)
    assert not can_group([FeedForwardConfig(d_ff=5).build(16) for _ in range(2)], x)
    hooked = [KINDS["mlp"].build(16) for _ in range(2)]
    hooked[1].up_proj.register_forward_hook(lambda *_: None)
    assert not can_group(hooked, x)
