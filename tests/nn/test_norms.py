"""Norms: the paper's formula in float64, invariances, and statistics that keep their digits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import (
    NORM_RECORDS,
    check_gradients,
    check_module,
    check_records,
    named,
    started,
)
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.norms import LayerNorm, LayerNormConfig, NormConfig, RMSNorm, RMSNormConfig


def paper(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Ba et al. 2016, eq. 3, and Zhang & Sennrich 2019, eq. 4, token by token in float64."""
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        if isinstance(norm, LayerNorm):
            mean = sum(row) / len(row)
            variance = sum((a - mean) ** 2 for a in row) / len(row)
            row = (row - mean) / (variance + norm.eps) ** 0.5
        else:
            row = row / (sum(a * a for a in row) / len(row) + norm.eps) ** 0.5
        row = row * norm.weight.double()
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        rows.append(row if bias is None else row + bias.double())
    return torch.stack(rows).view(x.shape)


def test_every_norm_has_a_record() -> None:
    check_records(NormConfig, NORM_RECORDS)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_contract(config: NormConfig) -> None:
    x = torch.randn(2, 3, 6)
    check_module(lambda: config.build(6), lambda norm, dtype: norm(x.to(dtype)))


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_gradients(config: NormConfig) -> None:
    check_gradients(config.build(4), lambda norm, x: norm(x), torch.randn(2, 4), twice=True)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 5), (2, 3, 5), (2, 2, 3, 7)])
def test_equals_the_formula(config: NormConfig, shape: tuple[int, ...]) -> None:
    norm = started(config.build(shape[-1]))
    x = 3 * torch.randn(shape) + 1
    assert_close(norm(x).double(), paper(norm, x), rtol=1e-5, atol=1e-5)
    assert_close(norm.double()(x.double()), paper(norm, x), rtol=1e-12, atol=1e-12)


def test_parity_with_torch() -> None:
    x = torch.randn(4, 7, dtype=torch.float64)
    assert_close(LayerNorm(7).double()(x), nn.LayerNorm(7).double()(x), rtol=0, atol=1e-12)
    assert_close(RMSNorm(7).double()(x), nn.RMSNorm(7, eps=1e-6).double()(x), rtol=0, atol=1e-12)


def test_without_epsilon_rows_one_two_three_become_the_same() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expected = torch.tensor([-1.2247, 0.0, 1.2247]).expand(2, 3)
    assert_close(LayerNorm(3, eps=0.0)(x), expected, rtol=0, atol=1e-4)


@given(shift=st.floats(-50, 50), scale=st.floats(0.5, 50), seed=st.integers(0, 99))
def test_shift_and_scale_change_nothing(shift: float, scale: float, seed: int) -> None:
    x = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    layer, rms = LayerNorm(8, eps=1e-12).double(), RMSNorm(8, eps=1e-12).double()
    assert_close(layer(scale * x + shift), layer(x), rtol=0, atol=1e-8)
    assert_close(rms(scale * x), rms(x), rtol=0, atol=1e-8)


def test_rms_norm_does_see_a_shift() -> None:
    x = torch.randn(2, 8)
    assert not torch.allclose(RMSNorm(8)(x + 1), RMSNorm(8)(x), atol=1e-2)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_a_sentence_is_normed_alone(config: NormConfig) -> None:
    norm, x = started(config.build(6)), torch.randn(5, 3, 6)
    alone = torch.cat([norm(row[None]) for row in x])
    assert_close(norm(x), alone, rtol=0, atol=1e-6)
    assert torch.equal(norm.train()(x), norm.eval()(x))


@pytest.mark.parametrize("config", named(NORM_RECORDS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_statistics_keep_float32(config: NormConfig, dtype: torch.dtype, scale: float) -> None:
    """Squares of 500 overflow float16, and a bfloat16 sum of 4,096 terms stalls long before."""
    norm = config.build(4096).to(dtype)
    x = (scale * (torch.randn(2, 4096) + 1)).to(dtype)
    out = norm(x)
    assert out.dtype == dtype
    half_step = torch.finfo(dtype).eps
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else wide
    expected = centred * (centred.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    assert_close(out.double(), expected, rtol=half_step, atol=half_step)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_under_autocast(config: NormConfig) -> None:
    """Master weights stay float32; what comes in bfloat16 leaves finite and close."""
    norm, x = config.build(32), 100 * torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        wide, narrow = norm(x), norm(x.bfloat16())
    assert wide.dtype == torch.float32
    assert_close(wide, norm(x), rtol=1e-6, atol=1e-6)
    assert_close(narrow.float(), wide, rtol=2e-2, atol=2e-2)
    narrow.float().sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_zeros_stay_finite(config: NormConfig) -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    out = config.build(4)(x)
    assert torch.equal(out, torch.zeros(2, 4))
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("config", [LayerNormConfig, RMSNormConfig])
@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_impossible_epsilon_is_refused(config: type[NormConfig], eps: float) -> None:
    with pytest.raises(ValueError, match="eps"):
        config(eps=eps)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_a_wrong_width_is_refused(config: NormConfig) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=r"shape|d_model|size"):
        config.build(4)(torch.randn(2, 5))
