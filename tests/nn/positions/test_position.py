"""What holds for all position schemes: records, states, and which of them see order."""

import pytest
import torch
from tests.contracts import POSITION_RECORDS, check_records, context, named

from addnorm.nn.attention import AttentionConfig
from addnorm.nn.masks import Full
from addnorm.nn.positions import NoPositionConfig, PositionConfig


def test_every_position_has_a_record() -> None:
    check_records(PositionConfig, POSITION_RECORDS)


@pytest.mark.parametrize("config", named(POSITION_RECORDS))
def test_only_no_position_is_blind_to_order(config: PositionConfig) -> None:
    """Without positions `Attn(P x) = P Attn(x)`; with any other scheme not."""
    position = config.build(8, 16)
    attention = AttentionConfig(n_heads=2).build(8, position.in_layer(0)).double()
    x, order, ctx = (
        torch.randn(1, 6, 8).double(),
        torch.tensor([3, 0, 5, 1, 4, 2]),
        context(1, 6, Full()),
    )

    def read(x: torch.Tensor) -> torch.Tensor:
        return attention(position.double().embed(x, ctx), ctx)

    blind = torch.allclose(read(x[:, order]), read(x)[:, order], rtol=0, atol=1e-10)
    assert blind == isinstance(config, NoPositionConfig)
    pooled = torch.allclose(read(x[:, order]).mean(1), read(x).mean(1), rtol=0, atol=1e-10)
    assert pooled == blind


@pytest.mark.parametrize("config", named(POSITION_RECORDS))
def test_positions_follow_the_type_of_the_model(config: PositionConfig) -> None:
    position, ctx = config.build(8, 16).to(torch.bfloat16), context(1, 3)
    x, q = torch.randn(1, 3, 8).bfloat16(), torch.randn(1, 2, 3, 4).bfloat16()
    assert position.embed(x, ctx).dtype == torch.bfloat16
    assert [y.dtype for y in position.rotate(q, q, ctx)] == [torch.bfloat16] * 2
