"""A claim of equality holds: every part, placement and swap, on inputs of our own choosing."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from tests.convert.swapping import KINDS, PARTS, difference, random, said, swap
from torch import nn

from addnorm.config import config
from addnorm.convert.transfer.verified import unequal
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    TokenHeadConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PostNormConfig, PreNormConfig, SandwichNormConfig
from addnorm.nn.types import HeadShape

HEADS = AttentionConfig(n_heads=4)
GATED = AttentionConfig(n_heads=4, output=GatedOutputConfig())
EXPERT = GatedFeedForwardConfig(d_ff=20)
AXES: dict[str, dict[str, dict[str, Any]]] = {
    "mixer": {
        "plain": {},
        "gated": {"attention": GATED},
        "gated per head": {"attention": replace(GATED, output=GatedOutputConfig(per="head"))},
        "gated across": {"cross_attention": GATED},
        "differential": {"attention": replace(HEADS, core=DifferentialCoreConfig())},
        "lstm": {"attention": RecurrentConfig(), "cross_attention": HEADS},
        "convolution": {"attention": ConvolutionConfig(), "cross_attention": HEADS},
    },
    "feedforward": {
        "plain": {},
        "gated": {"feedforward": EXPERT},
        "experts": {"feedforward": MixtureOfExpertsConfig(n_experts=3, expert=EXPERT)},
    },
    "placement": {
        "pre": {},
        "pre but first": {"residual": PreNormConfig(first=False)},
        "post": {"residual": PostNormConfig()},
        "sandwich": {"residual": SandwichNormConfig()},
        "parallel": {"residual": ParallelConfig()},
        "parallel, each": {"residual": ParallelConfig(norms="each")},
    },
}
SWAPS: dict[str, dict[str, Any]] = {
    "rmsnorm": {"norm": RMSNormConfig(eps=1e-5)},
    "offset": {"norm": OffsetRMSNormConfig(eps=1e-5)},
    "untied": {"head": TokenHeadConfig(tied=False)},
    "longer": {"max_len": 13},
}
CASES = [
    pytest.param(
        kind, mixer, feedforward, placement, id=f"{kind}-{mixer}-{feedforward}-{placement}"
    )
    for kind in KINDS
    for mixer in AXES["mixer"]
    for feedforward in AXES["feedforward"]
    for placement in AXES["placement"]
    if (kind == "encoder_decoder" or mixer != "gated across") and "plain" in (mixer, feedforward)
]


def claimed_or_not(old: ModelConfig, changes: dict[str, Any], *, beta: bool) -> bool:
    """Swap, and compare what is claimed with what comes out; return the claim."""
    model = random(old)
    if not beta:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.bias"):
                    parameter.zero_()
    swapped = swap(old, old=model, **changes)
    apart = difference(swapped.old, swapped.new)
    claimed = swapped.report.changed == ()
    assert (apart < 1e-9) == claimed, (apart, swapped.report.changed)
    return claimed


@pytest.mark.sampled(5)
@pytest.mark.long
@pytest.mark.parametrize(("kind", "mixer", "feedforward", "placement"), CASES)
def test_every_claim_of_equality_holds(
    kind: str, mixer: str, feedforward: str, placement: str
) -> None:
    parts = AXES["mixer"][mixer] | AXES["feedforward"][feedforward]
    try:
        old = replace(KINDS[kind], **parts | AXES["placement"][placement])
    except ValueError:
        return  # parts that do not fit
    claimed_or_not(old, SWAPS["rmsnorm"], beta=True)
    claimed_or_not(old, SWAPS["offset"], beta=False)
    if placement == "pre":
        for name in ("untied", "longer"):
            if kind != "encoder" or name != "untied":
                assert claimed_or_not(old, SWAPS[name], beta=True)


@pytest.mark.parametrize("where", ["attention", "cross_attention"])
@pytest.mark.parametrize("per", ["feature", "head"])
def test_a_gate_reads_the_norm_too_and_has_no_bias(where: str, per: Any) -> None:
    gated = replace(GATED, output=GatedOutputConfig(per=per))
    old = replace(KINDS["encoder_decoder"], attention=HEADS, cross_attention=HEADS)
    swapped = swap(replace(old, **{where: gated}), norm=RMSNormConfig(eps=1e-5))
    assert f"norm: β dropped before decoder.blocks.*.{where}.output.proj.weight, not exact" in (
        swapped.report.changed
    )
    assert difference(swapped.old, swapped.new) > 1e-4


@pytest.mark.parametrize("pooling", ["flatten", "mean", "last"])
@pytest.mark.parametrize("variables", ["mixed", "independent"])
def test_forecasters(pooling: Any, variables: Any) -> None:
    """A flat head reads the patches side by side, each with the β of the last norm."""
    series = SeriesEmbeddingConfig(channels=2, patch=4, look_back=18, variables=variables)
    config = EncoderConfig(
        **PARTS, input=series, head=ForecastHeadConfig(horizon=3, pooling=pooling)
    )
    swapped = swap(config, norm=RMSNormConfig(eps=1e-5))
    assert swapped.report.changed == ()
    x = torch.randn(2, 2, 18).double()
    with torch.no_grad():
        one, other = swapped.old(x), swapped.new(x)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


class MeanGate(nn.Module):
    """`heads (1 + mean(x))`: reads the norm without a weight."""

    def forward(self, heads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return heads * (1 + x.mean(-1))[:, None, :, None]


@config
class MeanGateConfig:
    kind: Literal["mean_gate"] = "mean_gate"

    def build(self, d_model: int, heads: HeadShape, layer: int) -> MeanGate:
        return MeanGate()


class Wrong(nn.Module):
    """A layer whose output is a little off."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 1.001


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unequal_models_are_detected_and_equal_ones_pass(kind: str, dtype: torch.dtype) -> None:
    config = KINDS[kind]
    old, new = random(config).to(dtype), random(config).to(dtype)
    assert unequal(old, new, config) is None
    stack = new.encoder if kind == "encoder_decoder" else new.stack
    stack.blocks[0].feedforward = Wrong(stack.blocks[0].feedforward)
    assert "differ by up to" in (unequal(old, new, config) or "")
    assert said(old).dtype == dtype


def test_exits_are_compared_and_what_does_not_run_is_not_verified() -> None:
    config = DecoderConfig(**PARTS, exits=(1,))
    old, new = random(config), random(config)
    assert unequal(old, new, config) is None
    with torch.no_grad():
        new.exits["1"].norm.weight.mul_(1.01)
    assert unequal(old, new, config) is not None
    series = SeriesEmbeddingConfig(channels=2, patch=4)
    translator = EncoderDecoderConfig(**PARTS, input=series)
    one = random(translator)
    assert unequal(one, one, translator) is None
    forecaster = EncoderConfig(
        **PARTS,
        input=replace(series, look_back=18),
        head=ForecastHeadConfig(horizon=3),
    )
    one = random(forecaster)
    wrong = replace(forecaster, input=replace(series, look_back=30))
    assert "could not be verified: the series makes" in (unequal(one, one, wrong) or "")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("beta", [1e-3, 1.0])
def test_a_narrow_type_hides_no_lost_beta(dtype: torch.dtype, beta: float) -> None:
    """A gate that reads the norm through its mean takes β where no weight can take it back."""
    old = replace(KINDS["decoder"], attention=replace(HEADS, output=MeanGateConfig()))
    model = random(old)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.bias"):
                parameter.copy_(beta * torch.ones_like(parameter))
    swapped = swap(old, old=model.to(dtype), dtype=dtype, norm=RMSNormConfig(eps=1e-5))
    [reason] = swapped.report.changed
    assert "not the same function: the outputs differ by up to" in reason
    plain = random(KINDS["decoder"]).to(dtype)
    swapped = swap(KINDS["decoder"], old=plain, dtype=dtype, norm=RMSNormConfig(eps=1e-5))
    assert swapped.report.changed == ()
    assert {one.dtype for one in swapped.new.parameters()} == {dtype}
