"""No positions: every hook returns its input."""

import torch
from tests.contracts import build_context, context

from addnorm.nn.positions import NoPosition, NoPositionConfig


def test_acts_nowhere() -> None:
    position, ctx = NoPositionConfig().build(build_context(4, 2)), context(1, 3)
    x, q, k = torch.randn(1, 3, 4), torch.randn(1, 2, 3, 2), torch.randn(1, 2, 3, 2)
    assert isinstance(position, NoPosition)
    assert position.embed(x, ctx) is x
    assert position.rotate(q, k, ctx) == (q, k)
    assert position.rotate_all(q, k, ctx) == (q, k)
    assert position.score_bias(q, ctx) is None
    assert position.in_layer(0) is position
    assert position.max_len is None
