"""Transfer rules, one by one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.convert.swapping import KINDS, PARTS, VOCAB, difference, said, swap
from torch.testing import assert_close

from addnorm.convert.transfer.rules import regroup_heads
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig
from addnorm.nn.attention.multihead import HeadShape
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)
from addnorm.nn.positions import (
    DisentangledConfig,
    LearnedConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import PostNormConfig

DECODER = KINDS["decoder"]
RMS = RMSNormConfig(eps=1e-5)
MLP = FeedForwardConfig(d_ff=20, activation="gelu")


def attention(kv: int | None = None, **parts: Any) -> AttentionConfig:
    return AttentionConfig(n_heads=4, n_kv_heads=kv, **parts)


EXACT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rms to offset": ({"norm": RMS}, {"norm": OffsetRMSNormConfig(eps=1e-5)}),
    "offset to rms": ({"norm": OffsetRMSNormConfig(eps=1e-5)}, {"norm": RMS}),
    "repeated heads": ({"attention": attention(1)}, {"attention": attention(4)}),
    "some heads repeated": ({"attention": attention(2, bias=False)}, {"attention": attention()}),
    "pairs repeated": (
        {"attention": attention(2, core=DifferentialCoreConfig())},
        {"attention": attention(core=DifferentialCoreConfig())},
    ),
    "pairs whose positions are projected": (
        {
            "attention": attention(2, core=DifferentialCoreConfig()),
            "position": DisentangledConfig(buckets=4, max_distance=7, projections="own"),
        },
        {"attention": attention(core=DifferentialCoreConfig())},
    ),
    "half of them": ({"attention": attention(1)}, {"attention": attention(2)}),
    "rotary heads": (
        {"attention": attention(2, qk_norm=RMS), "position": RotaryConfig()},
        {"attention": attention(qk_norm=RMS)},
    ),
    "longer": ({}, {"max_len": 25}),
    "shorter": ({}, {"max_len": 7}),
    "sines": ({"position": SinusoidalConfig()}, {"position": LearnedConfig()}),
    "sines in halves": (
        {"position": SinusoidalConfig(layout="halves", theta=50.0)},
        {"position": LearnedConfig()},
    ),
    "wider": ({}, {"feedforward": replace(MLP, d_ff=33)}),
    "wider gated": (
        {"feedforward": GatedFeedForwardConfig(d_ff=5)},
        {"feedforward": GatedFeedForwardConfig(d_ff=8)},
    ),
    "experts": ({}, {"feedforward": MixtureOfExpertsConfig(n_experts=3, expert=MLP)}),
    "untied": ({}, {"head": TokenHeadConfig(tied=False)}),
    "untied with bias": ({}, {"head": TokenHeadConfig(tied=False, bias=True)}),
    "biases": (
        {"attention": attention(bias=False), "feedforward": replace(MLP, bias=False)},
        {"attention": attention(), "feedforward": MLP},
    ),
    "out bias": ({"attention": attention(out_bias=False)}, {"attention": attention()}),
    "recurrent bias": (
        {"attention": RecurrentConfig(bias=False), "cross_attention": attention()},
        {"attention": RecurrentConfig()},
    ),
    "beta": ({"norm": LayerNormConfig(bias=False)}, {"norm": LayerNormConfig()}),
    "dropout": ({}, {"dropout": 0.3, "init": "gpt2"}),
    "default written out": (
        {"feedforward": FeedForwardConfig()},
        {"feedforward": FeedForwardConfig(d_ff=64)},
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers(kind: str, name: str) -> None:
    before, after = EXACT[name]
    swapped = swap(replace(KINDS[kind], **before), **after)
    assert difference(swapped.old, swapped.new) < 1e-10
    assert swapped.report.changed == ()
    new = {n for n, one in swapped.report.origins.items() if one.kind in ("new", "derived")}
    assert all(one.endswith("router.weight") for one in new), new


@pytest.mark.parametrize("kind", KINDS)
def test_everything_at_once(kind: str) -> None:
    swapped = swap(
        replace(KINDS[kind], attention=attention(2, bias=False), norm=RMS),
        norm=OffsetRMSNormConfig(eps=1e-5),
        attention=attention(4),
        feedforward=replace(MLP, d_ff=21),
        max_len=20,
        head=TokenHeadConfig(tied=False, bias=True),
    )
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10


OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "mean of heads": ({}, {"attention": attention(2)}, "attention.n_kv_heads: 4 → 2"),
    "uneven heads": (
        {"attention": AttentionConfig(n_heads=6, d_head=2, n_kv_heads=2)},
        {"attention": AttentionConfig(n_heads=6, d_head=2, n_kv_heads=3)},
        "attention.n_kv_heads: 2 → 3",
    ),
    "other heads": ({}, {"attention": AttentionConfig(n_heads=2)}, "attention.n_heads: 4 → 2"),
    "narrower": ({}, {"feedforward": replace(MLP, d_ff=19)}, "feedforward.d_ff: 20 → 19"),
    "activation": ({}, {"feedforward": replace(MLP, activation="relu")}, "activation: gelu"),
    "gated": ({}, {"feedforward": GatedFeedForwardConfig(d_ff=20)}, "feedforward: mlp → gated"),
    "one expert": (
        {},
        {"feedforward": MixtureOfExpertsConfig(n_experts=3, top_k=1, expert=MLP)},
        "feedforward: mlp → moe",
    ),
    "one layer": (
        {},
        {"layer_pattern": (LayerConfig(norm=RMS), LayerConfig())},
        "layer_pattern.0.norm: layernorm (of the model) → rmsnorm",
    ),
    "position": ({}, {"position": RotaryConfig()}, "position: learned → rotary"),
    "eps": ({"norm": RMS}, {"norm": RMSNormConfig(eps=1e-2)}, "norm.eps"),
    "offset and eps": ({"norm": RMS}, {"norm": OffsetRMSNormConfig(eps=1e-2)}, "norm: rmsnorm"),
    "with a mean": ({"norm": RMS}, {"norm": LayerNormConfig()}, "norm: rmsnorm → layernorm"),
    "over the batch": ({}, {"norm": BatchNormConfig()}, "norm: layernorm → batchnorm"),
    "one length": ({"norm": RMS}, {"norm": ScaleNormConfig()}, "norm: rmsnorm → scalenorm"),
    "no beta": ({}, {"norm": LayerNormConfig(bias=False)}, "norm.bias: True → False"),
    "no biases": ({}, {"attention": attention(bias=False)}, "attention.bias: True → False"),
    "placement": ({}, {"residual": PostNormConfig()}, "residual: pre → post"),
    "scale": ({}, {"embedding": EmbeddingConfig(scale="one")}, "embedding.scale"),
    "mixer": ({}, {"attention": RecurrentConfig()}, "attention: attention → recurrent"),
    "tied": (
        {"head": TokenHeadConfig(tied=False)},
        {"head": TokenHeadConfig()},
        "head.tied: False → True",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_function_is_reported(name: str) -> None:
    before, after, expected = OTHER[name]
    swapped = swap(replace(DECODER, **before), **after)
    assert any(expected in one for one in swapped.report.changed), swapped.report.changed
    assert difference(swapped.old, swapped.new) > 1e-9
    assert said(swapped.new).isfinite().all()


def test_zero_biases_may_go() -> None:
    old = swap(DECODER, attention=attention(bias=False)).new
    bare = replace(DECODER, attention=attention(bias=False))
    swapped = swap(bare, attention=attention())
    back = swap(swapped.config, old=swapped.new, attention=attention(bias=False))
    assert len(back.report.unused) == 8
    assert back.report.changed == ()
    assert difference(swapped.old, back.new) < 1e-12
    assert difference(old, back.new) > 1e-6


def test_heads_are_the_mean_of_their_group() -> None:
    """Ainslie et al. 2023, §2.1, written out."""
    swapped = swap(DECODER, attention=attention(2))
    old, new = swapped.old.state_dict(), swapped.new.state_dict()
    for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias"):
        full = f"stack.blocks.1.attention.{name}"
        heads = old[full].split(4)
        expected = torch.cat([(heads[0] + heads[1]) / 2, (heads[2] + heads[3]) / 2])
        assert_close(new[full], expected)
        assert swapped.report.origins[full].kind == "derived"
    assert swapped.report.origins["stack.blocks.1.attention.q_proj.weight"].kind == "exact"


def test_pairs_are_regrouped_as_pairs() -> None:
    """Query heads 0 … 5 read key heads 0 1, 0 1, 2 3 … in pairs, so pairs are averaged."""
    x, shapes = torch.arange(6.0), [HeadShape(6, n, 1) for n in (6, 2)]
    made, origin = regroup_heads(x, *shapes, (2, 2))
    assert made.tolist() == [2.0, 3.0]  # the mean of 0 2 4, and of 1 3 5
    assert origin.kind == "derived"
    made, origin = regroup_heads(x[:2], *reversed(shapes), (2, 2))
    assert made.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert origin.kind == "exact"


@settings(max_examples=50, deadline=None)
@given(
    kv=st.sampled_from([(1, 6), (2, 6), (3, 6), (6, 6), (6, 3), (6, 2), (6, 1), (2, 3), (3, 2)]),
    d_head=st.integers(1, 4),
    columns=st.integers(0, 3),
)
def test_regrouping_serves_each_query_head_the_mean(
    kv: tuple[int, int], d_head: int, columns: int
) -> None:
    shape = (kv[0] * d_head, columns) if columns else (kv[0] * d_head,)
    x = torch.randn(shape, dtype=torch.float64)
    shapes = [HeadShape(6, n, d_head) for n in kv]
    made, origin = regroup_heads(x, *shapes)
    served = x.unflatten(0, (kv[0], d_head)).repeat_interleave(6 // kv[0], 0)
    expected = torch.stack([part.mean(0) for part in served.chunk(kv[1])]).flatten(0, 1)
    assert_close(made, expected)
    assert (origin.kind == "exact") == (kv[1] % kv[0] == 0)


def test_a_longer_table_begins_again() -> None:
    swapped = swap(DECODER, max_len=20)
    table = swapped.new.state_dict()["embed.position.table.weight"]
    assert table[:9].equal(table[9:18])
    assert table[18:].equal(table[:2])
    how = swapped.report.origins["embed.position.table.weight"].how
    assert how.startswith("9 rows kept, then repeated")
    assert said(swapped.new, seq=20).isfinite().all()


def test_tables_of_both_sides() -> None:
    config = EncoderDecoderConfig(**PARTS, decoder_position=SinusoidalConfig(), decoder_max_len=8)
    swapped = swap(config, max_len=30, decoder_position=LearnedConfig(), decoder_max_len=12)
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10
    table = swapped.new.state_dict()["target_embed.position.table.weight"]
    assert table.shape == (12, 16)


def test_heads_and_units_of_the_decoder_alone() -> None:
    """Its cross-attention follows its own attention, and not the encoder's."""
    parts = PARTS | {"decoder_attention": attention(1), "decoder_feedforward": MLP}
    wider = FeedForwardConfig(d_ff=28, activation="gelu")
    swapped = swap(
        EncoderDecoderConfig(**parts), decoder_attention=attention(4), decoder_feedforward=wider
    )
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10
    how = {name: one.how for name, one in swapped.report.origins.items()}
    repeated = "each of 1 heads repeated for 4"
    assert how["decoder.blocks.0.attention.k_proj.weight"] == repeated
    assert how["decoder.blocks.0.cross_attention.v_proj.bias"] == repeated
    assert how["encoder.blocks.0.attention.k_proj.weight"] == ""


def test_a_table_of_another_meaning_is_not_taken_over() -> None:
    """T5's table of buckets and heads may have the shape of one of positions."""
    config = DecoderConfig(**PARTS | {"attention": AttentionConfig(n_heads=16), "max_len": 32})
    swapped = swap(config, position=T5BiasConfig())
    assert swapped.report.origins["embed.position.table.weight"].kind == "new"
    assert swapped.report.unused == ("embed.position.table.weight",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_new_tokens_are_the_mean_and_old_logits_stay_equal(kind: str, tied: bool) -> None:
    head = TokenHeadConfig(tied=tied, bias=True)
    swapped = swap(replace(KINDS[kind], head=head), vocab=VOCAB + 3)
    now = said(swapped.new)
    before = said(swapped.old)
    assert_close(now[..., :VOCAB], before, rtol=0, atol=1e-10)
    mean = before.mean(-1, keepdim=True).expand_as(now[..., VOCAB:])
    assert_close(now[..., VOCAB:], mean, rtol=0, atol=1e-10)
    assert swapped.report.changed == ("vocab_size: 11 → 14",)
    fewer = swap(swapped.config, old=swapped.new, vocab=VOCAB)
    assert difference(swapped.old, fewer.new) < 1e-10
    assert fewer.report.changed == ("vocab_size: 14 → 11",)


def test_new_tokens_and_a_folded_norm_together() -> None:
    """Two rewritings of one table."""
    swapped = swap(DECODER, vocab=VOCAB + 2, norm=RMS)
    assert_close(said(swapped.new)[..., :VOCAB], said(swapped.old), rtol=0, atol=1e-10)
    origin = swapped.report.origins["embed.tokens.weight"]
    assert origin.kind == "derived"
    assert origin.how.endswith("; centred")


def test_tables_that_were_one() -> None:
    swapped = swap(KINDS["encoder_decoder"], share_embeddings=False)
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-12
    new = swapped.new.state_dict()
    one, other = (new[f"{side}_embed.tokens.weight"] for side in ("source", "target"))
    assert one.data_ptr() != other.data_ptr()


def test_wider_units_learn() -> None:
    """Those that write zero still have a gradient, for what they read is not zero."""
    swapped = swap(DECODER, feedforward=replace(MLP, d_ff=24))
    loss = swapped.new(torch.tensor([[1, 2, 3]])).square().sum()
    loss.backward()
    gradient = swapped.new.get_parameter("stack.blocks.0.feedforward.down_proj.weight").grad
    assert gradient is not None
    assert gradient[:, 20:].abs().min() > 0
