"""T5 bias: the paper's buckets, in a table shared by all layers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, check_gradients, check_module, context, started
from tests.nn.positions.places import EVERYTHING, at
from torch import Tensor, nn

from addnorm.nn.positions import T5Bias, T5BiasConfig
from addnorm.nn.positions.t5 import bucket


def paper(offset: int, buckets: int, max_distance: int, causal: bool) -> int:
    """Raffel et al. 2020, §2.1: single distances, then logarithmic ranges, then all the rest."""
    side = 0
    if not causal:
        buckets //= 2
        side = buckets if offset > 0 else 0
    distance = max(-offset, 0) if causal else abs(offset)
    exact = buckets // 2
    if distance < exact:
        return side + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # A range begins where the share is an integer, which logarithms miss by a rounding.
    return side + min(exact + math.floor(share * (buckets - exact) + 1e-9), buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (4, 3), (64, 1000)])
def test_buckets_of_the_paper(buckets: int, max_distance: int, causal: bool) -> None:
    offsets = torch.arange(-1500, 1501)
    got = bucket(offsets, buckets=buckets, max_distance=max_distance, causal=causal)
    expected = [paper(int(o), buckets, max_distance, causal) for o in offsets]
    assert got.tolist() == expected
    assert set(range(buckets)) - set(got.tolist()) <= {0 if causal else buckets // 2}


def test_buckets_by_hand() -> None:
    """Of 32 up to 128: 0–15 alone, 16–18 together, and everything from 113 on in the last."""
    offsets = -torch.tensor([0, 15, 16, 18, 19, 112, 113, 127, 128, 10_000])
    got = bucket(offsets, buckets=32, max_distance=128, causal=True)
    assert got.tolist() == [0, 15, 16, 16, 17, 30, 31, 31, 31, 31]
    both = bucket(torch.tensor([-1, 1, -8, 8, 500]), buckets=32, max_distance=128, causal=False)
    assert both.tolist() == [1, 17, 8, 24, 31]


@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_definition(causal: bool) -> None:
    t5 = started(
        T5BiasConfig(buckets=8, max_distance=6).build(build_context(8, 2, causal=causal))
    ).double()
    assert isinstance(t5, T5Bias)
    rows = [[0, 1, 2, 7, 90], [0, 0, 0, 1, 2]]
    got = t5.score_bias(torch.zeros(2, 2, 3, 4).double(), at(*rows, new=3))(EVERYTHING, EVERYTHING)
    for b, row in enumerate(rows):
        for h in range(2):
            for i, p in enumerate(row[-3:]):
                for j, s in enumerate(row):
                    expected = t5.table.weight[paper(s - p, 8, 6, causal), h]
                    assert got[b, h, i, j] == expected


@given(
    p=st.integers(0, 500),
    s=st.integers(0, 500),
    shift=st.integers(0, 100_000),
    causal=st.booleans(),
)
def test_the_bias_depends_on_the_offset_alone(p: int, s: int, shift: int, causal: bool) -> None:
    """science.md §1: ALiBi and T5 biases likewise."""
    t5, q = T5Bias(2, causal=causal), torch.zeros(1, 2, 2, 4)
    near, far = (t5.score_bias(q, at([p + by, s + by])) for by in (0, shift))
    assert torch.equal(near(EVERYTHING, EVERYTHING), far(EVERYTHING, EVERYTHING))


def test_padding_has_no_effect() -> None:
    t5, q = T5Bias(2, buckets=8, causal=False), torch.zeros(2, 2, 5, 4)
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    bias = t5.score_bias(q, context(2, 5, valid=valid))(EVERYTHING, EVERYTHING)
    assert torch.equal(bias[0, :, 2:, 2:], bias[1, :, :3, :3])


def test_all_layers_share_one_table() -> None:
    t5 = T5BiasConfig().build(build_context(8, 2))
    layers = nn.ModuleList(t5.in_layer(i) for i in range(3))
    assert all(layer is t5 for layer in layers)
    assert [name for name, _ in layers.named_parameters()] == ["0.table.weight"]
    assert t5.table.weight.shape == (32, 2)


def whole(module: nn.Module, q: Tensor) -> Tensor:
    assert isinstance(module, T5Bias)
    bias = module.score_bias(q, context(1, q.shape[2]))
    assert bias is not None
    return bias(EVERYTHING, EVERYTHING)


def test_contract() -> None:
    def build() -> nn.Module:
        return T5BiasConfig(buckets=8, max_distance=9).build(build_context(8, 2, causal=False))

    check_module(build, lambda m, dtype: whole(m, torch.zeros(1, 2, 12, 4, dtype=dtype)))
    check_gradients(
        build(), lambda m, q: whole(m, q) * q.sum(), torch.randn(1, 2, 5, 4), twice=True
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"buckets": 7}, r"buckets = 7 must be even .* nearest is 6"),
        ({"buckets": 2}, r"buckets = 2 .* at least 4: the nearest is 4"),
        ({"max_distance": 16}, r"max_distance = 16 .* buckets = 32: at least 17"),
        ({"buckets": 0}, "buckets"),
    ],
)
def test_impossible_numbers_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        T5BiasConfig(**wrong)


@pytest.mark.parity
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 256), (8, 20), (64, 1000), (10, 37)]
)
def test_buckets_of_transformers(buckets: int, max_distance: int, causal: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    offsets = torch.arange(-20_000, 20_001)
    theirs = t5.T5Attention._relative_position_bucket(
        offsets, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    ours = bucket(offsets, buckets=buckets, max_distance=max_distance, causal=causal)
    assert torch.equal(ours, theirs)
