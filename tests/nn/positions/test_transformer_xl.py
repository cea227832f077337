"""Transformer-XL positions: the four terms of the paper, pair by pair."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, check_gradients, check_module, context, started
from tests.nn.positions.places import EVERYTHING, at, scores
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.positions import Position, RelativeScores, TransformerXL, TransformerXLConfig

SCALE = 0.37


def layer() -> RelativeScores:
    module = started(RelativeScores(6, 2, 4, scale=SCALE)).double()
    assert isinstance(module, RelativeScores)
    return module


def paper(module: RelativeScores, q: Tensor, k: Tensor, rows: list[list[int]]) -> Tensor:
    """Dai et al. 2019, §3.3, the reparameterised sum of (a) to (d), times the scale."""
    batch, heads, n_queries, d_head = q.shape
    d_model = module.r_proj.in_features
    out = torch.empty(batch, heads, n_queries, k.shape[2], dtype=torch.float64)
    for b, row in enumerate(rows):
        for i, p in enumerate(row[-n_queries:]):
            for j, s in enumerate(row):
                r = torch.empty(d_model, dtype=torch.float64)
                for m in range(d_model // 2):
                    angle = (p - s) / 10000 ** (2 * m / d_model)
                    r[2 * m], r[2 * m + 1] = math.sin(angle), math.cos(angle)
                projected = (module.r_proj.weight @ r).view(heads, d_head)
                for h in range(heads):
                    content = q[b, h, i] @ k[b, h, j]
                    place = q[b, h, i] @ projected[h]
                    content_bias = module.u[h] @ k[b, h, j]
                    place_bias = module.v[h] @ projected[h]
                    out[b, h, i, j] = SCALE * (content + place + content_bias + place_bias)
    return out


@pytest.mark.parametrize("new", [1, 3, 5])
def test_equals_the_formula(new: int) -> None:
    """Keys ahead and behind, rows at positions of their own, with and without earlier keys."""
    rows = [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [7, 8, 0, 1, 131_071]]
    q, k = torch.randn(3, 2, new, 4).double(), torch.randn(3, 2, 5, 4).double()
    module = layer()
    got = scores(module, q, k, at(*rows, new=new), scale=SCALE)
    assert_close(got, paper(module, q, k, rows), rtol=0, atol=1e-9)


@given(p=st.integers(0, 2000), s=st.integers(0, 2000), shift=st.integers(0, 100_000))
def test_scores_depend_on_the_offset_alone(p: int, s: int, shift: int) -> None:
    module, q = layer(), torch.randn(1, 2, 2, 4).double()
    near, far = (scores(module, q, q, at([p + by, s + by])) for by in (0, shift))
    assert_close(far, near, rtol=0, atol=1e-9)


def test_far_positions_in_small_types() -> None:
    """At position 131,071 the type's own rounding is all there is."""
    module, q = layer(), torch.randn(1, 2, 3, 4).double()
    ctx = at([131_061, 131_070, 131_071])
    exact = scores(module, q, q, ctx)
    for dtype, near in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        got = scores(layer_like(module, dtype), q.to(dtype), q.to(dtype), ctx)
        assert got.dtype == dtype
        assert_close(got.double(), exact, rtol=0, atol=near * exact.detach().abs().max().item())


def layer_like(module: RelativeScores, dtype: torch.dtype) -> RelativeScores:
    copy = RelativeScores(6, 2, 4, scale=SCALE)
    copy.load_state_dict(module.state_dict())
    return copy.to(dtype)


def test_padding_has_no_effect() -> None:
    module, real = layer(), torch.randn(1, 2, 3, 4).double()
    q = torch.full((2, 2, 5, 4), 9.0).double()
    q[0, :, 2:] = q[1, :, :3] = real[0]
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    got = scores(module, q, q, context(2, 5, valid=valid))
    for alone in (got[:1, :, 2:, 2:], got[1:, :, :3, :3]):
        assert_close(alone, scores(module, real, real, context(1, 3)), rtol=0, atol=1e-12)


def test_every_layer_has_its_own() -> None:
    scheme = TransformerXLConfig().build(build_context(8, 2))
    assert isinstance(scheme, TransformerXL)
    assert not [*scheme.parameters()]
    layers = nn.ModuleList(scheme.in_layer(i) for i in range(3))
    shapes = {name: tuple(p.shape) for name, p in layers.named_parameters()}
    assert shapes == {
        f"{i}.{name}": shape
        for i in range(3)
        for name, shape in {"u": (2, 4), "v": (2, 4), "r_proj.weight": (8, 8)}.items()
    }


def test_contract() -> None:
    def build() -> Position:
        return TransformerXLConfig().build(build_context(8, 2)).in_layer(0)

    def call(module: nn.Module, dtype: torch.dtype) -> Tensor:
        assert isinstance(module, Position)
        q = torch.randn(1, 2, 3, 4).to(dtype)
        return scores(module, q, q * 2, context(1, 3)).softmax(-1)

    check_module(build, call)


def test_gradients() -> None:
    def call(module: nn.Module, q: Tensor, k: Tensor) -> Tensor:
        assert isinstance(module, RelativeScores)
        bias = module.score_bias(q, at([0, 1, 5], new=2))
        assert bias is not None
        return scores(module, q, k, at([0, 1, 5], new=2)) + bias(EVERYTHING, EVERYTHING)

    module = RelativeScores(6, 2, 4, scale=SCALE)
    check_gradients(module, call, torch.randn(1, 2, 2, 4), torch.randn(1, 2, 3, 4), twice=True)


def test_keys_may_be_shared_by_heads() -> None:
    module, q, k = layer(), torch.randn(1, 2, 3, 4).double(), torch.randn(1, 1, 3, 4).double()
    assert_close(
        scores(module, q, k, context(1, 3)),
        scores(module, q, k.expand(-1, 2, -1, -1), context(1, 3)),
    )


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="d_model = 5 must be even; the nearest are 4 and 6"):
        TransformerXLConfig().build(build_context(5, 1)).in_layer(0)


def test_the_two_vectors_of_all_queries_start_small() -> None:
    scheme = TransformerXLConfig().build(build_context(1024, 8)).in_layer(0)
    assert isinstance(scheme, RelativeScores)
    for vector in (scheme.u, scheme.v):
        assert vector.shape == (8, 128)
        assert vector.std().item() == pytest.approx(0.02, rel=0.1)
