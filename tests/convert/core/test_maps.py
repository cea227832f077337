"""Tensor maps round-trip bit-exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.convert.core.maps import (
    AlternatingHeads,
    Concatenated,
    ConcatenatedExperts,
    InterleavedHeads,
    Renamed,
    Reshaped,
    SkipRows,
    StackedExperts,
    TensorMap,
    Transposed,
    ZeroTensor,
    concatenated,
    tensor_maps,
    within,
)

MAPS: list[tuple[TensorMap, list[tuple[int, ...]]]] = [
    (Renamed("a", "x"), [(3, 5)]),
    (Concatenated(("a", "b", "c"), "x", (2, 3, 1)), [(2, 5), (3, 5), (1, 5)]),
    (Concatenated(("a", "b"), "x", (2, 3)), [(2,), (3,)]),
    (InterleavedHeads(("a", "b", "c"), "x", 3), [(6, 5)] * 3),
    (InterleavedHeads(("a", "b", "c"), "x", 3), [(6,)] * 3),
    (InterleavedHeads(("a", "b", "c"), "x", 6, 2), [(12, 5), (4, 5), (4, 5)]),
    (InterleavedHeads(("a", "b", "c"), "x", 3, 1), [(6,), (2,), (2,)]),
    (Transposed(Renamed("a", "x")), [(3, 5)]),
    (Transposed(Concatenated(("a", "b"), "x", (2, 3))), [(2, 5), (3, 5)]),
    (SkipRows("a", "x", 2), [(3, 5)]),
    (Reshaped("a", "x", (5,), (1, 1, 5)), [(5,)]),
    (AlternatingHeads(("a", "b", "c"), "x", (2, 1, 3)), [(4, 5), (2, 5), (6, 5)]),
    (ConcatenatedExperts(("a", "b", "c", "d"), "x", 2), [(3, 5)] * 4),
    (ConcatenatedExperts(("a", "b"), "x"), [(3, 5)] * 2),
]


@pytest.mark.parametrize(("one", "shapes"), MAPS, ids=lambda x: type(x).__name__)
def test_maps_round_trip(one: TensorMap, shapes: list[tuple[int, ...]]) -> None:
    ours = [torch.randn(shape) for shape in shapes]
    theirs = one.write(ours)
    assert len(theirs) == len(one.theirs)
    back = one.read(theirs)
    assert len(back) == len(one.ours) == len(ours)
    assert all(torch.equal(x, y) for x, y in zip(ours, back, strict=True))


@given(heads=st.integers(1, 4), width=st.integers(1, 4))
def test_interleaved_heads_have_queries_keys_and_values_of_each_head_in_turn(
    heads: int, width: int
) -> None:
    q, k, v = (torch.randn(heads * width, 3) for _ in range(3))
    [fused] = InterleavedHeads(("q", "k", "v"), "qkv", heads).write([q, k, v])
    rows: list[Tensor] = []
    for h in range(heads):
        rows += [part[h * width : (h + 1) * width] for part in (q, k, v)]
    assert torch.equal(fused, torch.cat(rows))


def test_queries_that_share_keys_stand_before_them() -> None:
    q, k, v = torch.arange(4.0), torch.arange(10.0, 12), torch.arange(20.0, 22)
    [fused] = InterleavedHeads(("q", "k", "v"), "qkv", 4, 2).write([q, k, v])
    assert fused.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_tensors_that_do_not_fit_are_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match="has 4 rows, expected 5"):
        Concatenated(("a", "b"), "x", (2, 3)).read([torch.zeros(4, 2)])
    with pytest.raises(
        ValueError, match="has 10 rows, which do not divide into 3 heads of queries and 3 of"
    ):
        InterleavedHeads(("a", "b", "c"), "x", 3).read([torch.zeros(10, 2)])
    with pytest.raises(ValueError, match=r"has shape \(2, 2\)"):
        Reshaped("a", "x", (4,), (4, 1)).read([torch.zeros(2, 2)])


def test_rows_before_the_first_position_are_written_as_zeros_and_skipped() -> None:
    one = SkipRows("a", "x", 2)
    assert torch.equal(one.write([torch.ones(2, 3)])[0][:2], torch.zeros(2, 3))
    assert one.read([torch.arange(10.0).view(5, 2)])[0].tolist() == [[4, 5], [6, 7], [8, 9]]


def test_a_tensor_without_effect_is_read_as_zero_and_not_written() -> None:
    one = ZeroTensor("bias", (3,))
    assert one.read([])[0].tolist() == [0, 0, 0]
    assert not one.write([torch.zeros(3)])


def test_experts_are_stacked_with_alternating_columns() -> None:
    names = ("0.gate", "0.up", "1.gate", "1.up")
    ours = [torch.randn(3, 2) for _ in names]
    [stacked] = StackedExperts(names, "x", 2).write(ours)
    assert stacked.shape == (2, 2, 6)
    assert torch.equal(stacked[1, :, 3], ours[3][1])
    back = StackedExperts(names, "x", 2).read([stacked])
    assert all(torch.equal(a, b) for a, b in zip(back, ours, strict=True))
    [biases] = StackedExperts(names, "x", 2).write([weight[:, 0] for weight in ours])
    assert torch.equal(biases, stacked[:, 0])
    with pytest.raises(ValueError, match=r"has shape \(3, 2, 6\): expected 2 experts"):
        StackedExperts(names, "x", 2).read([torch.zeros(3, 2, 6)])


def test_names_of_modules_give_those_of_the_tensors_that_a_model_has() -> None:
    names = {"norm": "ln_f", "head": "lm_head", **within("b.*", "h.*.x", {"up": "fc", "down": "p"})}
    ours = ["norm.weight", "b.0.up.weight", "b.0.up.bias", "b.11.down.weight"]
    maps = tensor_maps(ours, names)
    assert {entry.ours[0]: entry.theirs[0] for entry in maps} == {
        "norm.weight": "ln_f.weight",
        "b.0.up.weight": "h.0.x.fc.weight",
        "b.0.up.bias": "h.0.x.fc.bias",
        "b.11.down.weight": "h.11.x.p.weight",
    }


def test_a_layer_and_an_expert_keep_their_numbers() -> None:
    [entry] = tensor_maps(["b.3.experts.10.up.weight"], {"b.*.experts.*.up": "h.*.moe.*.w3"})
    assert entry.theirs == ("h.3.moe.10.w3.weight",)


def test_maps_of_other_forms_precede_names_and_need_all_their_tensors() -> None:
    others = [Transposed(Renamed("a.weight", "x.w")), *concatenated("qkv", ("q", "k"), "c_", 3)]
    ours = ["a.weight", "a.bias", "qkv.q.weight", "qkv.k.weight"]
    assert tensor_maps(ours, {"a": "x"}, others) == [*others[:2], Renamed("a.bias", "x.bias")]
    assert others[1] == Concatenated(("qkv.q.weight", "qkv.k.weight"), "c_weight", (3, 3))
