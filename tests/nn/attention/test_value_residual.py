"""Value residual: a row by hand, the start, and gradients to the first layer."""

from typing import Any

import pytest
import torch
from tests.contracts import context

from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.value_residual import ValueResidualName, build_value_residual
from addnorm.nn.positions import NoPosition, RotaryConfig

NAMES: tuple[ValueResidualName, ...] = ("fixed", "learned", "interpolated")


@pytest.mark.parametrize(
    ("name", "factors", "expected"),
    [
        ("fixed", [], [(8 + 1) / 2, (-2 + 3) / 2]),
        ("learned", [2.0, -3.0], [2 * 8 - 3 * 1, 2 * -2 - 3 * 3]),
        ("interpolated", [0.25], [0.25 * 8 + 0.75 * 1, 0.25 * -2 + 0.75 * 3]),
    ],
)
def test_a_row_by_hand(
    name: ValueResidualName, factors: list[float], expected: list[float]
) -> None:
    """The values (1, 3), and (8, -2) of the first layer."""
    module = build_value_residual(name).double()
    for parameter in module.parameters():
        parameter.data.copy_(torch.tensor(factors))
    v, first = torch.tensor([1.0, 3.0]).double(), torch.tensor([8.0, -2.0]).double()
    assert module(v.view(1, 1, 1, 2), first.view(1, 1, 1, 2)).flatten().tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_all_begin_as_the_mean(name: ValueResidualName) -> None:
    v, first = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(build_value_residual(name)(v, first), (v + first) / 2)


def decoder(name: ValueResidualName, **fields: Any) -> Any:
    attention = AttentionConfig(n_heads=4, n_kv_heads=2, value_residual=name)
    torch.manual_seed(0)
    config = DecoderConfig(
        d_model=16, n_layers=3, position=RotaryConfig(), attention=attention, dropout=0.0, **fields
    )
    return config.build(20)


@pytest.mark.parametrize("name", NAMES)
def test_later_layers_read_the_first(name: ValueResidualName) -> None:
    """A change of the first layer's values alone reaches the values of the last layer."""
    model = decoder(name).double().eval()
    assert model.stack.read_layers == [None, 0, 0]
    stored: list[torch.Tensor] = []
    model.stack.blocks[2].attention.core.register_forward_hook(
        lambda _, args, __: stored.append(args[2].detach())
    )
    for layer in (0, 1):  # nothing else of these layers reaches the stream
        model.stack.blocks[layer].attention.out_proj.weight.data.zero_()
    tokens = torch.randint(20, (2, 5))
    model(tokens)
    model.stack.blocks[0].attention.v_proj.bias.data.add_(1.0)
    model(tokens)
    torch.testing.assert_close(stored[1] - stored[0], torch.full_like(stored[0], 0.5))


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_has_a_gradient(name: ValueResidualName) -> None:
    model = decoder(name)
    model(torch.randint(20, (2, 5))).square().sum().backward()
    zero = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [n for n in zero if not n.endswith("k_proj.bias")] == []


def test_outside_of_a_stack_it_says_what_it_needs() -> None:
    attention = AttentionConfig(n_heads=2, value_residual="fixed").build(8, NoPosition(), True, 1)
    with pytest.raises(ValueError, match="a value residual reads the first layer: run it in a st"):
        attention(torch.randn(1, 3, 8), context(1, 3))
    first = AttentionConfig(n_heads=2, value_residual="fixed").build(8, NoPosition(), True, 0)
    assert first(torch.randn(1, 3, 8), context(1, 3)).shape == (1, 3, 8)
