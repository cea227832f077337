"""Scaling of rotary frequencies: each formula, its limits, and other implementations."""

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from tests.contracts import check_config
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.positions.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    ScalingConfig,
    YaRNScaling,
)
from addnorm.nn.positions.sinusoidal import frequencies

StretchedScaling = LinearScaling | NTKScaling | YaRNScaling | Llama3Scaling
FixedScaling = StretchedScaling | ProportionalScaling
RECORDS = [
    LinearScaling(factor=4.0),
    NTKScaling(factor=4.0),
    DynamicScaling(factor=4.0, original_max_len=64),
    YaRNScaling(factor=4.0, original_max_len=2048),
    YaRNScaling(factor=4.0, original_max_len=2048, truncate=False, attention_factor=0.8),
    Llama3Scaling(),
    LongRoPEScaling(short=(1.0,), long=(4.0,), original_max_len=64, attention_factor=1.1),
    ProportionalScaling(share=0.3),
]
FIXED = [r for r in RECORDS if not isinstance(r, DynamicScaling | LongRoPEScaling)]
STRETCHED = [r for r in FIXED if not isinstance(r, ProportionalScaling)]
WIDTHS = [2, 4, 16, 128]


def test_every_scaling_has_a_record() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(get_args(ScalingConfig)[0]))
    for record in RECORDS:
        check_config(record, ScalingConfig)


def omega(i: int, width: int, theta: float) -> float:
    return theta ** (-2 * i / width)


def paper(scaling: StretchedScaling, i: int, width: int, theta: float) -> float:
    """The frequency of pair `i`, from the papers."""
    own = omega(i, width, theta)
    match scaling:
        case LinearScaling():
            return own / scaling.factor
        case NTKScaling():
            base = theta * scaling.factor ** (width / (width - 2)) if width > 2 else theta
            return omega(i, width, base)
        case YaRNScaling():
            at = [
                width * math.log(scaling.original_max_len / (2 * math.pi * turns)) / math.log(theta)
                for turns in (scaling.beta_fast, scaling.beta_slow)
            ]
            first, last = at[0] / 2, at[1] / 2
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, width - 1)
            share = (i - first) / (last - first) if last > first else float(i > first)
            gamma = 1 - min(max(share, 0), 1)
            return gamma * own + (1 - gamma) * own / scaling.factor
        case Llama3Scaling():
            wavelength = 2 * math.pi / own
            if wavelength < scaling.original_max_len / scaling.high_freq_factor:
                return own
            if wavelength > scaling.original_max_len / scaling.low_freq_factor:
                return own / scaling.factor
            turns = scaling.original_max_len / wavelength
            span = scaling.high_freq_factor - scaling.low_freq_factor
            smooth = (turns - scaling.low_freq_factor) / span
            return (1 - smooth) * own / scaling.factor + smooth * own


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scaling", STRETCHED, ids=lambda s: s.kind)
def test_equals_the_formula(scaling: StretchedScaling, width: int, theta: float) -> None:
    got = scaling.frequencies(width, theta)
    expected = [paper(scaling, i, width, theta) for i in range(width // 2)]
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 1.0])
def test_a_share_of_the_pairs_keeps_its_frequencies(share: float, width: int) -> None:
    got = ProportionalScaling(share=share).frequencies(width, 10000.0)
    pairs = range(width // 2)
    expected = [omega(i, width, 10000.0) * (i + 1 <= share * width / 2) for i in pairs]
    assert got.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scaling", STRETCHED, ids=lambda s: s.kind)
def test_every_frequency_is_between_its_own_and_its_own_over_s(
    scaling: StretchedScaling, width: int
) -> None:
    own, got = frequencies(width), scaling.frequencies(width, 10000.0)
    assert (got <= own * (1 + 1e-12)).all()
    assert (got >= own / scaling.factor * (1 - 1e-12)).all()


@pytest.mark.parametrize("kind", [LinearScaling, NTKScaling, Llama3Scaling])
def test_a_factor_of_one_changes_nothing(kind: Any) -> None:
    assert_close(kind(factor=1.0).frequencies(16, 10000.0), frequencies(16))
    yarn = YaRNScaling(factor=1.0, original_max_len=64)
    assert_close(yarn.frequencies(16, 10000.0), frequencies(16))
    assert yarn.temperature == 1.0


def test_ends_of_ntk_and_yarn() -> None:
    """NTK keeps the fastest pair and slows the slowest by `s`; so does YaRN where it reaches."""
    for scaling in (NTKScaling(factor=4.0), YaRNScaling(factor=4.0, original_max_len=2048)):
        got, own = scaling.frequencies(128, 10000.0), frequencies(128)
        assert_close(got[0], own[0])
        assert_close(got[-1], own[-1] / 4)


def test_temperatures() -> None:
    yarn = YaRNScaling(factor=16.0, original_max_len=4096)
    assert yarn.temperature == pytest.approx(0.1 * math.log(16) + 1)
    assert replace(yarn, attention_factor=0.8).temperature == 0.8
    assert {s.temperature for s in FIXED if not isinstance(s, YaRNScaling)} == {1.0}


def test_dynamic_follows_the_length() -> None:
    """`s(l) = s l / L - (s - 1)`: 1 up to L, then NTK-aware by `s(l)`."""
    dynamic = DynamicScaling(factor=4.0, original_max_len=64)
    got = dynamic.frequencies(
        dynamic.constants(16, 10000.0), torch.tensor([1, 64, 65, 128, 131_072])
    )
    assert_close(got[:2], frequencies(16).expand(2, -1))
    for row, length in ((2, 65), (3, 128), (4, 131_072)):
        ntk = NTKScaling(factor=4 * length / 64 - 3)
        assert_close(got[row], ntk.frequencies(16, 10000.0))


def test_longrope_has_other_divisors_past_the_original_length() -> None:
    scaling = LongRoPEScaling(short=(1.0, 2.0), long=(4.0,), original_max_len=8)
    got = scaling.frequencies(scaling.constants(4, 100.0), torch.tensor([[1, 8], [9, 100]]))
    assert_close(got[0], torch.tensor([1.0, 0.05]).double().expand(2, 2))
    assert_close(got[1], torch.tensor([0.25, 0.025]).double().expand(2, 2))


def test_longrope_needs_a_divisor_for_each_pair() -> None:
    scaling = LongRoPEScaling(short=(1.0,), long=(1.0, 2.0, 3.0), original_max_len=8)
    scaling.check_width(6)
    with pytest.raises(ValueError, match=r"long has 3 divisors, .* 8 features .* in 4 pairs"):
        scaling.check_width(8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(factor=0.5), "factor"),
        (lambda: DynamicScaling(factor=2.0, original_max_len=0), "original_max_len"),
        (
            lambda: YaRNScaling(factor=2.0, original_max_len=8, beta_fast=1.0, beta_slow=2.0),
            r"beta_slow = 2\.0 must be less than beta_fast = 1\.0",
        ),
        (
            lambda: Llama3Scaling(low_freq_factor=4.0),
            r"low_freq_factor = 4\.0 must be less than high_freq_factor = 4\.0",
        ),
    ],
)
def test_impossible_numbers_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parity
@pytest.mark.parametrize(("width", "theta"), [(64, 10000.0), (128, 500000.0), (32, 10000.0)])
@pytest.mark.parametrize(
    "scaling", [r for r in RECORDS if r.kind not in ("ntk", "longrope")], ids=lambda s: s.kind
)
def test_equals_transformers(
    scaling: FixedScaling | DynamicScaling, width: int, theta: float
) -> None:
    """Their frequencies are float32, so theirs and ours agree to float32."""
    transformers = pytest.importorskip("transformers")
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    fields = {name: getattr(scaling, name) for name in scaling.__dataclass_fields__}
    length = fields.pop("original_max_len", 2048)
    if "share" in fields:
        fields["partial_rotary_factor"] = fields.pop("share")
    config = transformers.LlamaConfig(
        head_dim=width,
        max_position_embeddings=length,
        rope_parameters={
            "rope_type": fields.pop("kind"),
            "rope_theta": theta,
            "original_max_position_embeddings": length,
            **fields,
        },
    )
    compute = rope.ROPE_INIT_FUNCTIONS[scaling.kind]
    if isinstance(scaling, DynamicScaling):
        for now in (1, length, length + 1, 20 * length):
            theirs, _ = compute(config, "cpu", seq_len=now)
            _agree(
                scaling.frequencies(scaling.constants(width, theta), torch.tensor([now]))[0], theirs
            )
        return
    theirs, temperature = compute(config, "cpu")
    _agree(scaling.frequencies(width, theta), theirs)
    assert scaling.temperature == pytest.approx(temperature)


def _agree(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours.float(), theirs, rtol=2e-6, atol=0)


def test_the_turns_between_which_yarn_blends_are_the_papers() -> None:
    """Peng et al. 2024, §3.2: α = 1 and β = 32 for LLaMA."""
    scaling = YaRNScaling(factor=2.0, original_max_len=8)
    assert (scaling.beta_slow, scaling.beta_fast) == (1.0, 32.0)
