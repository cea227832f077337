"""Attention: sharing of key/value heads, and masks."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from addnorm.checking.definition.attention import (
    after_heads,
    cross_attention,
    heads_of,
    self_attention,
)
from addnorm.checking.definition.texts import MixerContext, Texts
from addnorm.nn.attention import AttentionConfig, DifferentialOutputConfig, GatedOutputConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import NoPositionConfig, RotaryConfig


def weights(d_model: int, width: int) -> dict[str, torch.Tensor]:
    widths = {"q": d_model, "k": width, "v": width, "out": d_model}
    return {f"{name}_proj.weight": torch.randn(n, d_model).double() for name, n in widths.items()}


def place(*lengths: int, causal: bool) -> MixerContext:
    return MixerContext(texts=Texts.of(lengths), causal=causal, position=NoPositionConfig())


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_it_is_that_of_torch(n_kv_heads: int) -> None:
    w, x = weights(8, 2 * n_kv_heads), torch.randn(5, 8).double()
    ours = self_attention(
        AttentionConfig(n_heads=4, n_kv_heads=n_kv_heads), w, x, place(5, causal=True)
    )
    q, k, v = (
        (x @ w[f"{name}_proj.weight"].T).view(5, -1, 2).transpose(0, 1)[None] for name in "qkv"
    )
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ours, heads[0].transpose(0, 1).flatten(1) @ w["out_proj.weight"].T)


def test_texts_do_not_see_each_other() -> None:
    w, x = weights(4, 4), torch.randn(5, 4).double()

    def attended(x: torch.Tensor, *lengths: int) -> torch.Tensor:
        return self_attention(AttentionConfig(n_heads=2), w, x, place(*lengths, causal=False))

    alone = torch.cat([attended(x[:3], 3), attended(x[3:], 2)])
    torch.testing.assert_close(attended(x, 3, 2), alone)


def test_cross_attention_sees_its_own_memory_alone() -> None:
    w, x, memory = weights(4, 4), torch.randn(3, 4).double(), torch.randn(2, 4).double()
    seen = Texts.of([2, 1]).same_text(Texts.of([1, 1]))
    found = cross_attention(AttentionConfig(n_heads=2), w, x, memory, seen, 0)
    alone = memory @ w["v_proj.weight"].T @ w["out_proj.weight"].T  # one key: all weight is on it
    torch.testing.assert_close(found, alone[[0, 0, 1]])


def test_a_norm_over_all_heads_has_one_mean_square() -> None:
    """Heads of width 1: of queries (3, 4), `q / √((9 + 16) / 2)`; of values (3, 4), each is 1."""
    w = {f"{name}_proj.weight": torch.eye(2).double() for name in ("q", "k", "v", "out")}
    x = torch.tensor([[3.0, 4.0]]).double()
    gain = torch.tensor([1.0, 10.0]).double()
    norms = {f"{name}_norm.norm.weight": gain for name in "qk"}
    rms = RMSNormConfig(eps=1e-30)
    over = AttentionConfig(n_heads=2, qk_norm=rms, qk_norm_over="heads")
    q, k, _ = heads_of(over, w | norms, x, x)
    assert torch.cat(q, 1).tolist() == [pytest.approx([3 / 12.5**0.5, 40 / 12.5**0.5])]
    assert torch.equal(torch.cat(q, 1), torch.cat(k, 1))
    each = AttentionConfig(n_heads=2, v_norm=replace(rms, gain="none"))
    assert torch.cat(heads_of(each, w, x, x)[2], 1).tolist() == [pytest.approx([1.0, 1.0])]


def test_a_norm_after_the_rotation_sees_rotated_features() -> None:
    """A gain of (1, 0) after a rotation by a right angle keeps what was the second feature."""
    w = {f"{name}_proj.weight": torch.eye(2).double() for name in ("q", "k", "v", "out")}
    gain = torch.tensor([1.0, 0.0]).double()
    w |= {f"rotated_{name}_norm.weight": gain for name in "qk"}
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    norm = RMSNormConfig(eps=1e-30)
    config = AttentionConfig(n_heads=1, qk_norm=norm, qk_norm_after="rotation")
    plain = replace(place(2, causal=True), position=RotaryConfig(theta=2.0))
    # Position 1 turns by one radian: (0, 1) becomes (-sin 1, cos 1), of length 1, times √2.
    scores = torch.tensor([-math.sin(1) * math.sqrt(2) * math.sqrt(2), 2 * math.sin(1) ** 2])
    weights = (scores.double() / math.sqrt(2)).softmax(0)
    found = self_attention(config, w, x, plain)
    torch.testing.assert_close(found[1], weights)


def test_a_gate_reads_what_the_queries_come_from() -> None:
    w, x = weights(4, 4), torch.randn(3, 4).double()
    config = AttentionConfig(n_heads=2)
    plain = self_attention(config, w, x, place(3, causal=True))
    shut = w | {"output.proj.weight": torch.zeros(4, 4).double()}
    gated = self_attention(
        replace(config, output=GatedOutputConfig()), shut, x, place(3, causal=True)
    )
    torch.testing.assert_close(gated, plain / 2)


HEADS = [torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[3.0, 4.0]]).double()]
X = torch.tensor([[1.0]]).double()


def test_a_gate_for_each_feature_or_each_head() -> None:
    logits = torch.tensor([[0.0], [100.0], [-100.0], [0.0]]).double()
    found = after_heads(GatedOutputConfig(), {"proj.weight": logits}, HEADS, X)
    assert [head.round(decimals=6).tolist() for head in found] == [[[0.5, 2]], [[0, 2]]]
    found = after_heads(GatedOutputConfig(per="head"), {"proj.weight": logits[1:3]}, HEADS, X)
    assert [head.round(decimals=6).tolist() for head in found] == [[[1, 2]], [[0, 0]]]


def test_nothing_stands_there_by_default() -> None:
    assert after_heads(None, {}, HEADS, X) is HEADS


def test_difference_of_a_pair_by_hand() -> None:
    """λ = σ(ln 3) = ¾: 5 − ¾ · 4 = 2."""
    heads = [torch.full((1, 1), value).double() for value in (5.0, 4.0)]
    weights = {"proj.weight": torch.tensor([[3.0]]).double().log()}
    found = after_heads(DifferentialOutputConfig(), weights, heads, torch.ones(1, 1).double())
    assert [float(head) for head in found] == pytest.approx([2.0])
