"""Folding LayerNorm into RMSNorm, compared in float64."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.convert.swapping import KINDS, PARTS, difference, random, said_in_steps, swap
from torch import nn

from addnorm.config import config
from addnorm.convert.transfer.folding import Reader, readers
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
    TransformConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    NoPositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)
from addnorm.nn.types import HeadShape

RMS = RMSNormConfig(eps=1e-5)
DECODER = KINDS["decoder"]
PLAIN = GatedFeedForwardConfig(d_ff=20)


@pytest.mark.parametrize("norm", [RMS, OffsetRMSNormConfig(eps=1e-5)], ids=lambda n: n.kind)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers(kind: str, norm: RMSNormConfig) -> None:
    swapped = swap(KINDS[kind], norm=norm)
    assert difference(swapped.old, swapped.new) < 1e-10
    assert swapped.report.changed == swapped.report.unused == ()
    if kind != "encoder":
        one, other = said_in_steps(swapped.old), said_in_steps(swapped.new)
        assert float((one - other).abs().max()) < 1e-10
        assert one.std() > 0.1


VARIANTS: dict[str, dict[str, Any]] = {
    "no biases": {"attention": AttentionConfig(n_heads=4, bias=False), "feedforward": PLAIN},
    "out bias alone": {"attention": AttentionConfig(n_heads=4, bias=False, out_bias=True)},
    "grouped, normed heads": {
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2, qk_norm=LayerNormConfig())
    },
    "no beta": {"norm": LayerNormConfig(bias=False)},
    "parallel": {"residual": ParallelConfig()},
    "parallel, a norm each": {"residual": ParallelConfig(norms="each")},
    "untied": {"head": TokenHeadConfig(tied=False, bias=True, softcap=3.0)},
    "scaled": {"head": TokenHeadConfig(scale="sqrt")},
    "transform": {"head": TokenHeadConfig(transform=TransformConfig(norm=LayerNormConfig()))},
    "transform without bias": {"head": TokenHeadConfig(transform=TransformConfig(bias=False))},
    "rotary": {"position": RotaryConfig()},
    "alibi": {"position": ALiBiConfig()},
    "t5": {"position": T5BiasConfig(buckets=4, max_distance=8)},
    "transformer_xl": {"position": TransformerXLConfig()},
    "recurrent": {
        "attention": RecurrentConfig(bias=False),
        "cross_attention": AttentionConfig(n_heads=4, bias=False),
        "position": NoPositionConfig(),
    },
    "gru": {
        "attention": RecurrentConfig(cell="gru"),
        "cross_attention": AttentionConfig(n_heads=4),
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_swapping_the_norm_together_with_another_part_is_exact(kind: str, variant: str) -> None:
    swapped = swap(replace(KINDS[kind], **VARIANTS[variant]), norm=RMS)
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10


@pytest.mark.parametrize(
    "head",
    [
        ClassificationHeadConfig(),
        ClassificationHeadConfig(pooling="max", transform=TransformConfig(bias=False)),
        ClassificationHeadConfig(pooling="first"),
        TaggingHeadConfig(),
        TaggingHeadConfig(transform=TransformConfig()),
        PoolerHeadConfig(),
    ],
)
def test_heads_of_encoders(head: Any) -> None:
    swapped = swap(EncoderConfig(**PARTS, head=head), norm=RMS)
    assert swapped.report.changed == ()
    tokens, valid = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[True, True, True, False]])
    with torch.no_grad():
        one, other = (model(tokens, valid) for model in (swapped.old, swapped.new))
    shown = valid if head.kind == "tagging" else slice(None)
    torch.testing.assert_close(one[shown], other[shown], rtol=0, atol=1e-10)


def test_early_exits() -> None:
    swapped = swap(replace(DECODER, exits=(1,)), norm=RMS)
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        for one, other in zip(
            swapped.old.exit_logits(tokens), swapped.new.exit_logits(tokens), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert swapped.report.changed == ()


def test_the_places_are_made_only_where_they_are_needed() -> None:
    attention = AttentionConfig(n_heads=4, bias=False)
    bare = replace(DECODER, attention=attention, feedforward=PLAIN, norm=LayerNormConfig())
    swapped = swap(bare, norm=RMS)
    assert swapped.config.attention == replace(attention, bias=True, out_bias=False)
    assert swapped.config.feedforward == replace(PLAIN, bias=True)
    assert swapped.config.head == TokenHeadConfig(tied=False, bias=True)
    old = random(bare)
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            if name.endswith("norm.bias"):
                parameter.zero_()
    swapped = swap(bare, old=old, norm=RMS)
    assert swapped.config == replace(bare, norm=RMS, head=TokenHeadConfig(tied=False))
    assert difference(old, swapped.new) < 1e-10


OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "post": ({"residual": PostNormConfig()}, "post placement"),
    "sandwich": ({"residual": SandwichNormConfig()}, "sandwich placement"),
    "deepnorm": ({"residual": DeepNormConfig()}, "deepnorm placement"),
    "embedding": ({"embedding": EmbeddingConfig(norm=LayerNormConfig())}, "embedding has a norm"),
    "eps": ({"norm": LayerNormConfig(eps=1e-3)}, "differ in eps"),
    "first left out": ({"residual": PreNormConfig(first=False)}, "would read centred embeddings"),
    "sinusoidal": ({"position": SinusoidalConfig()}, "cannot be centred"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_inexact_folding_keeps_gamma_and_reports_the_reason(name: str) -> None:
    parts, why = OBSTACLES[name]
    old = replace(DECODER, **parts)
    swapped = swap(old, norm=RMS)
    assert swapped.config == replace(old, norm=RMS), "nothing is added in vain"
    [reason] = swapped.report.changed
    assert "β dropped, not exact" in reason
    assert why in reason
    assert difference(swapped.old, swapped.new) > 1e-6
    gamma = "stack.blocks.1.feedforward_residual.norm.weight"
    if name != "sandwich":
        assert swapped.new.state_dict()[gamma].equal(swapped.old.state_dict()[gamma])
        assert swapped.report.origins[gamma].kind == "derived"
    assert any(one.endswith("norm.bias") for one in swapped.report.unused)


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({"attention": ConvolutionConfig(kernel_size=3)}, "attention.conv"),
        (
            {
                "feedforward": MixtureOfExpertsConfig(
                    n_experts=3, expert=PLAIN, shared=PLAIN, shared_gate=True
                )
            },
            "shared_gate",
        ),
    ],
)
def test_beta_without_a_bias_to_absorb_it_is_dropped_and_reported(
    parts: dict[str, Any], where: str
) -> None:
    swapped = swap(replace(DECODER, **parts), norm=RMS)
    [reason] = swapped.report.changed
    assert where in reason
    assert "β dropped" in reason
    assert difference(swapped.old, swapped.new) > 1e-6
    old = random(replace(DECODER, **parts, norm=LayerNormConfig(bias=False)))
    swapped = swap(replace(DECODER, **parts, norm=LayerNormConfig(bias=False)), old=old, norm=RMS)
    assert swapped.report.changed == ()
    assert difference(old, swapped.new) < 1e-10


@pytest.mark.parametrize("shared", [None, PLAIN])
def test_routers_absorb_beta(shared: Any) -> None:
    experts = MixtureOfExpertsConfig(n_experts=3, expert=PLAIN, shared=shared)
    swapped = swap(replace(DECODER, feedforward=experts), norm=RMS)
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10


def test_vectors_themselves_keep_no_beta() -> None:
    swapped = swap(EncoderConfig(**PARTS, head=HiddenHeadConfig()), norm=RMS)
    assert swapped.report.changed == ("norm: β dropped before stack.norm, not exact",)


def test_sines_written_down_can_be_centred() -> None:
    """Two changes at once, and the same numbers as far as the table goes."""
    sines = replace(DECODER, position=SinusoidalConfig())
    swapped = swap(sines, norm=RMS, position=PARTS["position"])
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new, seq=9) < 1e-10


@settings(max_examples=8, deadline=None)
@given(
    n_heads=st.integers(1, 3),
    d_head=st.sampled_from([1, 3, 5]),
    layers=st.integers(1, 3),
    decoder_layers=st.integers(1, 2),
    d_ff=st.integers(1, 9),
)
def test_at_any_size(
    n_heads: int, d_head: int, layers: int, decoder_layers: int, d_ff: int
) -> None:
    parts = PARTS | {
        "d_model": n_heads * d_head + 1,
        "n_layers": layers,
        "attention": AttentionConfig(n_heads=n_heads, d_head=d_head),
        "cross_attention": AttentionConfig(n_heads=n_heads, d_head=2, bias=False),
        "feedforward": FeedForwardConfig(d_ff=d_ff),
    }
    translator = EncoderDecoderConfig(**parts, n_decoder_layers=decoder_layers)
    for model in (DecoderConfig(**parts), translator):
        swapped = swap(model, norm=RMS)
        assert swapped.report.changed == ()
        assert difference(swapped.old, swapped.new) < 1e-9


def test_a_narrow_table_is_left_and_its_map_is_centred() -> None:
    """The table itself writes nothing to the residual stream."""
    to_it = TransformConfig(activation="identity", bias=False, d_out=6)
    model = DecoderConfig(
        **PARTS,
        embedding=EmbeddingConfig(d_embed=6),
        head=TokenHeadConfig(tied=False, transform=to_it),
    )
    swapped = swap(model, norm=RMSNormConfig(eps=1e-5))
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10
    assert swapped.report.origins["embed.proj.weight"].how == "centred"


BLOCK = "stack.blocks.0"


def of(parts: DecoderConfig, norm: str) -> list[Reader]:
    return readers(random(parts), [norm], parts)[norm]


def read(prefix: str, *names: str, bias: bool = True) -> list[Reader]:
    return [
        Reader(f"{prefix}.{name}.weight", f"{prefix}.{name}.bias" if bias else None)
        for name in names
    ]


def rounded(found: list[Reader]) -> list[Reader]:
    return [replace(one, factor=round(one.factor, 9)) for one in found]


def decoder(**parts: object) -> DecoderConfig:
    old = KINDS["decoder"]
    assert isinstance(old, DecoderConfig)
    return replace(old, **parts)  # pyright: ignore[reportArgumentType]


def test_a_shared_norm_is_read_by_both_branches() -> None:
    heads = AttentionConfig(n_heads=4, output=GatedOutputConfig())
    found = of(decoder(residual=ParallelConfig(), attention=heads), f"{BLOCK}.norm")
    assert set(rounded(found)) == {
        *read(f"{BLOCK}.attention", "q_proj", "k_proj", "v_proj"),
        Reader(f"{BLOCK}.attention.output.proj.weight", None),
        *read(f"{BLOCK}.feedforward", "up_proj"),
    }


def test_every_expert_reads_the_norm_whatever_the_router_chooses() -> None:
    experts = MixtureOfExpertsConfig(n_experts=5, top_k=1, expert=GatedFeedForwardConfig(d_ff=6))
    found = of(decoder(feedforward=experts), f"{BLOCK}.feedforward_residual.norm")
    assert len(found) == 1 + 5 * 2
    assert Reader(f"{BLOCK}.feedforward.router.weight", None) in found


def test_a_scaled_head_has_its_factor_and_a_convolution_takes_no_beta() -> None:
    parts = decoder(head=TokenHeadConfig(tied=False, bias=True, scale="sqrt"))
    assert rounded(of(parts, "stack.norm")) == [Reader("head.weight", "head.bias", 16**-0.5)]
    found = of(decoder(attention=ConvolutionConfig()), f"{BLOCK}.attention_residual.norm")
    assert found
    assert all(one.bias is None and ".conv." in one.weight for one in found)


def test_recurrent_layers_and_the_memory_of_a_translator() -> None:
    [found] = of(
        decoder(attention=RecurrentConfig(cell="lstm")), f"{BLOCK}.attention_residual.norm"
    )
    place = f"{BLOCK}.attention.ahead"
    assert (found.weight, found.bias) == (f"{place}.weight_ih_l0", f"{place}.bias_ih_l0")
    model = random(KINDS["encoder_decoder"])
    found = readers(model, ["encoder.norm"], KINDS["encoder_decoder"])["encoder.norm"]
    names = {
        f"decoder.blocks.{i}.cross_attention.{one}_proj.weight" for i in (0, 1) for one in "kv"
    }
    assert {one.weight for one in found} == names


class Gate(nn.Module):
    """A gate with a bias, whose names are in no table."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.opens = nn.Linear(d_model, n_heads)

    def forward(self, heads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return heads * torch.sigmoid(self.opens(x)).transpose(1, 2)[..., None]


@config
class GateConfig:
    kind: Literal["gate"] = "gate"

    def build(self, d_model: int, heads: HeadShape, layer: int) -> Gate:
        return Gate(d_model, heads.n_heads)


class Layer(nn.Module):
    """A feed-forward layer whose names are in no table."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, 7)
        self.down_proj = nn.Linear(7, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.tanh(self.inner(x)))


@config
class LayerConfig:
    kind: Literal["layer"] = "layer"

    def build(self, d_model: int) -> Layer:
        return Layer(d_model)


def test_custom_parts_take_beta_where_they_have_a_bias() -> None:
    heads = AttentionConfig(n_heads=4, output=GateConfig())
    swapped = swap(
        decoder(attention=heads, feedforward=LayerConfig()), norm=RMSNormConfig(eps=1e-5)
    )
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10
    assert swapped.report.origins[f"{BLOCK}.feedforward.inner.bias"].how == "β added"
