"""Waveforms: plain loops in float64, padding of any content, and lengths."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch.testing import assert_close

from addnorm.config import ConfigError
from addnorm.errors import InputError
from addnorm.models.inputs import InputConfig
from addnorm.nn.positions import NoPosition
from addnorm.nn.waveform import ConvolutionalPosition, WaveformEmbeddingConfig

SIZES = {"kernels": (3, 2), "strides": (2, 1), "position_kernel": 4, "position_groups": 2}
FIRST = WaveformEmbeddingConfig(channels=(3, 5), **SIZES)  # type: ignore[arg-type]
EVERY = WaveformEmbeddingConfig(
    channels=(3, 5),
    layer_norms="every",
    bias=True,
    norm=False,
    projection_norm=False,
    **SIZES,  # type: ignore[arg-type]
)
both = pytest.mark.parametrize("config", [FIRST, EVERY], ids=["first", "every"])


def build(config: WaveformEmbeddingConfig, d_model: int = 4) -> torch.nn.Module:
    return config.build(d_model, NoPosition(), 0.0)


@both
def test_contract(config: WaveformEmbeddingConfig) -> None:
    check_config(config, InputConfig)
    samples = torch.randn(2, 1, 12)
    check_module(lambda: build(config), lambda m, _: m(samples)[0])
    check_gradients(build(config), lambda m, x: m(x)[0], samples, twice=False)


def test_a_norm_over_time_equals_plain_loops() -> None:
    layer = build(FIRST).double().layers[0]  # type: ignore[index, union-attr]
    samples = torch.randn(1, 1, 9).double()
    weight = layer.conv.weight[:, 0].detach()
    found = layer(samples, None).detach()
    for channel in range(3):
        z = [float((weight[channel] * samples[0, 0, t : t + 3]).sum()) for t in range(0, 7, 2)]
        mean = sum(z) / len(z)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in z) / len(z) + 1e-5)
        for t, x in enumerate(z):
            y = (x - mean) / deviation
            expected = y * (1 + math.erf(y / math.sqrt(2))) / 2
            assert abs(float(found[0, channel, t]) - expected) < 1e-10


def test_positions_equal_plain_loops() -> None:
    """`g V / ‖V‖` for each place of the kernel; an even kernel looks one further back."""
    module = ConvolutionalPosition(4, 4, 2, "relu").double().requires_grad_(requires_grad=False)
    with torch.no_grad():
        module.magnitude.normal_()
        module.bias.normal_()
    x = torch.randn(1, 5, 4).double()
    found = module(x)
    norms = [math.sqrt(float(module.direction[:, :, k].square().sum())) for k in range(4)]
    for t in range(5):
        for out in range(4):
            total = float(module.bias[out])
            for k in range(4):
                place = t + k - 2
                for i in range(2):
                    if 0 <= place < 5:
                        w = float(module.magnitude[k] * module.direction[out, i, k]) / norms[k]
                        total += w * float(x[0, place, out // 2 * 2 + i])
            assert abs(float(found[0, t, out]) - max(0, total)) < 1e-10


@both
@given(n=st.integers(5, 20), more=st.integers(0, 9))
def test_a_padded_clip_is_embedded_as_if_it_were_alone(
    config: WaveformEmbeddingConfig, n: int, more: int
) -> None:
    module = build(config).double()
    clip, other = torch.randn(1, 1, n).double(), torch.randn(1, 1, n + more).double()
    padded = torch.cat([clip, torch.full((1, 1, more), math.nan).double()], dim=-1)
    valid = torch.tensor([[True] * n + [False] * more, [True] * (n + more)])
    x, ctx = module(torch.cat([padded, other]), valid)
    alone, _ = module(clip)
    frames = config.n_positions([n])
    assert alone.shape[1] == frames
    real = module.valid_positions(valid)  # type: ignore[operator]
    assert real.sum(1).tolist() == [frames, config.n_positions([n + more])]
    assert torch.equal(ctx.valid, real)
    assert_close(x[0, :frames], alone[0])
    assert not x[0, frames:].any()


def test_wrong_inputs_are_named() -> None:
    module = build(FIRST)
    assert FIRST.least == 5
    assert WaveformEmbeddingConfig().least == 400  # 25 ms at 16,000 samples a second
    assert WaveformEmbeddingConfig().n_positions([16_000]) == 49
    with pytest.raises(InputError, match="4 samples is too short: this model reads at least 5"):
        module(torch.randn(1, 1, 4))
    with pytest.raises(InputError, match=r"shape \(batch, 1, time\)"):
        module(torch.randn(1, 2, 40))
    with pytest.raises(ConfigError, match="and are 7, 2 and 7: give as many of each"):
        WaveformEmbeddingConfig(kernels=(3, 2))
    with pytest.raises(InputError, match="position_groups = 16 does not divide d_model = 20"):
        build(WaveformEmbeddingConfig(), 20)
