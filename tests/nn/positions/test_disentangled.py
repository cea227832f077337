"""Disentangled positions: one pair by hand, buckets, and what their layers share."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, check_config
from tests.nn.positions.places import EVERYTHING, at

from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.norms import BatchNormConfig, LayerNormConfig
from addnorm.nn.positions import DisentangledConfig, PositionConfig
from addnorm.nn.positions.disentangled import DisentangledScores, log_bucket


class Projections:
    """One head of two features: the input twice over, and its negative."""

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x[:, None]

    def keys(self, y: torch.Tensor) -> torch.Tensor:
        return -y[:, None]

    def for_query_heads(self, k: torch.Tensor, n_heads: int) -> torch.Tensor:
        return k


def test_a_pair_by_hand() -> None:
    """`(q·(-r) + k·2r) · scale / √3` with `r` the row of offset `i - j = -1`."""
    config = DisentangledConfig(buckets=None, max_distance=2, norm=None)
    layer = config.build(build_context(2, 1)).in_layer(0)
    assert isinstance(layer, DisentangledScores)
    layer.relative.table.weight.data = torch.tensor([[9.0, 9], [3, 5], [7, 7], [8, 8]])
    q, k = torch.tensor([[[[1.0, 2]]]]), torch.tensor([[[[4.0, 6]]]])
    ctx = at([0, 1])
    q, k = q.expand(1, 1, 2, 2), k.expand(1, 1, 2, 2)
    turned, same = layer.rotate(q, k, ctx)
    torch.testing.assert_close(turned, q / math.sqrt(3))
    assert same is k
    bias = layer.content_bias(turned, k, ctx, Projections())
    assert bias is not None
    expected = (-(1 * 3 + 2 * 5) + 2 * (4 * 3 + 6 * 5)) * layer.scale / math.sqrt(3)
    assert float(bias(EVERYTHING, EVERYTHING)[0, 0, 0, 1].detach()) == pytest.approx(expected)


@given(st.integers(2, 64), st.integers(3, 400), st.integers(-2000, 2000))
def test_buckets_are_odd_and_exact_nearby_and_never_shrink(
    middle: int, more: int, offset: int
) -> None:
    buckets, most = 2 * middle, middle + more
    near, far, next_one = log_bucket(
        torch.tensor([offset, -offset, offset + 1]), buckets, most
    ).tolist()
    assert near == -far
    assert next_one >= near
    assert abs(offset) > middle or near == offset
    assert int(log_bucket(torch.tensor(most - 1), buckets, most)) == max(buckets - 1, middle + 1)


def test_layers_share_the_table_and_have_their_own_maps() -> None:
    config = DisentangledConfig(
        buckets=4, max_distance=9, projections="own", norm=LayerNormConfig()
    )
    model = EncoderConfig(
        d_model=8, n_layers=2, position=config, attention=AttentionConfig(n_heads=2)
    ).build(11)
    names = [name for name, _ in model.named_parameters() if "position" in name]
    assert names[:3] == [
        f"embed.position.relative.{part}" for part in ("table.weight", "norm.weight", "norm.bias")
    ]
    assert len(names) == 3 + 2 * 4
    shared = DisentangledConfig(buckets=4, max_distance=9).build(build_context(8, 2))
    assert [name for name, _ in shared.in_layer(0).named_parameters()] == ["relative.table.weight"]


def test_its_configuration() -> None:
    for config in DisentangledConfig.examples().values():
        check_config(config, PositionConfig)
    with pytest.raises(ValueError, match="buckets = 3 must be at least 4"):
        DisentangledConfig(buckets=3)
    with pytest.raises(ValueError, match=r"max_distance = 5 must be .* at least 6"):
        DisentangledConfig(buckets=8, max_distance=5)
    with pytest.raises(ValueError, match="batchnorm cannot"):
        DisentangledConfig(norm=BatchNormConfig())
