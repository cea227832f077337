"""Norms: the paper's formula in float64, invariances, and precise statistics.

Tests named after a *check* hold a line of the definitions: batch norm's and layer norm's golden
rows, what depends on the batch and what does not, and the invariances.
"""

import math

import pytest
import torch
from hypothesis import given, settings
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
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.nn import functional, norms
from addnorm.nn.norms import (
    BatchNorm,
    BatchNormConfig,
    DynamicErf,
    DynamicTanh,
    LayerNorm,
    LayerNormConfig,
    NoNorm,
    Norm,
    NormConfig,
    OffsetLayerNorm,
    OffsetRMSNorm,
    OffsetRMSNormConfig,
    RMSNorm,
    RMSNormConfig,
    ScaleNorm,
    ScaleNormConfig,
    rms_norm,
)

CONFIGS = (
    LayerNormConfig,
    RMSNormConfig,
    OffsetRMSNormConfig,
    ScaleNormConfig,
    BatchNormConfig,
)
PER_TOKEN = [record for record in NORM_RECORDS if not isinstance(record, BatchNormConfig)]


def paper(norm: Norm, x: Tensor) -> Tensor:
    """The formulas of the norms per token, one token at a time in float64."""
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        mean = sum(row) / len(row)
        eps = getattr(norm, "eps", 0.0)
        root_mean_square = (sum(a * a for a in row) / len(row) + eps) ** 0.5
        match norm:
            case DynamicTanh(alpha=alpha, weight=gain, bias=bias):
                row = gain * torch.tanh(alpha * row) + bias
            case DynamicErf(alpha=alpha, shift=shift, weight=gain, bias=bias):
                inner = [float(alpha.detach() * a + shift.detach()) for a in row]
                row = gain * row.new_tensor([math.erf(a) for a in inner]) + bias
            case LayerNorm(weight=gain, bias=bias) | OffsetLayerNorm(weight=gain, bias=bias):
                gain = 1.0 if gain is None else gain + isinstance(norm, OffsetLayerNorm)
                variance = sum((a - mean) ** 2 for a in row) / len(row)
                row = (row - mean) / (variance + norm.eps) ** 0.5 * gain
                row = row if bias is None else row + bias
            case RMSNorm(weight=gain):
                row = row / root_mean_square * (1.0 if gain is None else gain)
            case OffsetRMSNorm(weight=offset):
                row = row / root_mean_square * (1 + offset)
            case ScaleNorm(weight=g):
                row = g * row / max(sum(a * a for a in row) ** 0.5, norm.eps)
        rows.append(row)
    return torch.stack(rows).view(x.shape).double()


def batch_paper(norm: BatchNorm, x: Tensor, valid: Tensor) -> Tensor:
    """Ioffe & Szegedy 2015, alg. 1, feature by feature in float64, over the real tokens."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for feature in range(x.shape[-1]):
        real = [x[i, t, feature].double() for i, t in valid.nonzero()]
        mean = sum(real) / len(real)
        variance = sum((a - mean) ** 2 for a in real) / len(real)
        scale = norm.weight[feature].double() / (variance + norm.eps) ** 0.5
        out[..., feature] = scale * (x[..., feature].double() - mean) + norm.bias[feature].double()
    return out


def test_every_norm_has_a_record() -> None:
    check_records(NormConfig, NORM_RECORDS)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_contract(config: NormConfig) -> None:
    x = torch.randn(2, 3, 6, requires_grad=True)
    check_module(lambda: config.build(6), lambda norm, dtype: norm(x.to(dtype)))


@pytest.mark.parametrize("config", named(NORM_RECORDS))
@pytest.mark.parametrize("training", [True, False])
def test_gradients(config: NormConfig, training: bool) -> None:
    norm = config.build(4).train(training)
    check_gradients(norm, lambda norm, x: norm(x), torch.randn(3, 4), twice=True)


@pytest.mark.parametrize("config", named(PER_TOKEN))
@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 5), (2, 3, 5), (2, 2, 3, 7)])
def test_equals_the_formula(config: NormConfig, shape: tuple[int, ...]) -> None:
    norm = started(config.build(shape[-1]))
    x = 3 * torch.randn(shape) + 1
    assert_close(norm(x).double(), paper(norm, x), rtol=1e-5, atol=1e-5)
    norm.double()
    assert_close(norm(x.double()), paper(norm, x), rtol=1e-12, atol=1e-12)


def test_parity_with_torch() -> None:
    x = torch.randn(4, 7, dtype=torch.float64)
    assert_close(LayerNorm(7).double()(x), nn.LayerNorm(7).double()(x), rtol=0, atol=1e-12)
    theirs = nn.RMSNorm(7, eps=1e-6).double()(x)
    assert_close(RMSNorm(7).double()(x), theirs, rtol=0, atol=1e-12)
    assert_close(OffsetRMSNorm(7).double()(x), theirs, rtol=0, atol=1e-12)


def test_a_new_scale_norm_is_a_new_rms_norm() -> None:
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    norm = ScaleNorm(7).double()
    assert_close(norm(x), RMSNorm(7, eps=0.0).double()(x), rtol=1e-6, atol=1e-7)
    assert sum(p.numel() for p in norm.parameters()) == 1


def test_an_offset_gain_keeps_what_a_narrow_gain_loses() -> None:
    """Half a step of bfloat16 at one: `1 + γ` there would round it away."""
    norm = OffsetRMSNorm(4).bfloat16()
    nn.init.constant_(norm.weight, 2.0**-9)
    assert norm.weight.eq(2.0**-9).all()
    assert (1 + norm.weight).eq(1).all()
    x = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.bfloat16)
    wide = norm(x.double() * (1 + 2.0**-8))
    assert_close(wide, x.double() * (1 + 2.0**-9), rtol=0, atol=1e-6)


def test_a_norm_without_gain_is_that_of_torch() -> None:
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    for ours, theirs in (
        (RMSNormConfig(gain="none"), nn.RMSNorm(7, eps=1e-6, elementwise_affine=False)),
        (LayerNormConfig(gain="none", bias=False), nn.LayerNorm(7, elementwise_affine=False)),
    ):
        norm = ours.build(7)
        assert not list(norm.parameters())
        assert_close(norm(x), theirs(x), rtol=0, atol=1e-12)
        direction = torch.randn_like(x)
        found, expected = (grad((f(x) * direction).sum(), x)[0] for f in (norm, theirs))
        assert_close(found, expected, rtol=0, atol=1e-12)


def test_an_offset_layer_norm_starts_as_a_layer_norm() -> None:
    x = torch.randn(4, 7)
    assert torch.equal(OffsetLayerNorm(7)(x), LayerNorm(7)(x))
    assert not OffsetLayerNorm(7).weight.any()


# The checks of the definitions.


def test_check_golden_rows() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expected = torch.tensor([-1.2247, 0.0, 1.2247]).expand(2, 3)
    assert_close(LayerNorm(3, eps=0.0)(x), expected, rtol=0, atol=1e-4)
    ones = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    assert_close(BatchNorm(3, eps=0.0)(x), ones, rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", named(PER_TOKEN))
def test_check_a_sentence_is_normed_alone(config: NormConfig) -> None:
    norm, x = started(config.build(6)), torch.randn(5, 3, 6)
    alone = torch.cat([norm(row[None]) for row in x])
    assert_close(norm(x), alone, rtol=0, atol=1e-6)
    assert torch.equal(norm.train()(x), norm.eval()(x))
    valid = torch.rand(5, 3) > 0.5
    assert torch.equal(norm(x, valid), norm(x))


def test_check_batch_norm_depends_on_the_batch_and_on_the_mode() -> None:
    norm, x = BatchNorm(6), torch.randn(5, 3, 6)
    together = norm(x)
    assert not torch.allclose(together[:1], norm(x[:1]), atol=1e-2)
    assert not torch.allclose(together, norm.eval()(x), atol=1e-2)
    assert_close(norm(x)[:1], norm(x[:1]), rtol=0, atol=0)


@settings(max_examples=20)
@given(shift=st.floats(-50, 50), scale=st.floats(0.5, 50), seed=st.integers(0, 99))
def test_check_shift_and_scale_change_nothing(shift: float, scale: float, seed: int) -> None:
    x = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for config in CONFIGS:
        norm = config(eps=1e-12).build(8).double()
        assert_close(norm(scale * x), norm(x), rtol=0, atol=1e-8)
        if config in (LayerNormConfig, BatchNormConfig):
            assert_close(norm(scale * x + shift), norm(x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("config", [RMSNormConfig, OffsetRMSNormConfig, ScaleNormConfig])
def test_norms_without_a_mean_do_see_a_shift(config: type[NormConfig]) -> None:
    x, norm = torch.randn(2, 8), config().build(8)
    assert not torch.allclose(norm(x + 1), norm(x), atol=1e-2)


@pytest.mark.parametrize("config", named([c for c in NORM_RECORDS if hasattr(c, "eps")]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_check_statistics_keep_float32(
    config: NormConfig, dtype: torch.dtype, scale: float
) -> None:
    """Squares of 500 overflow float16, and a bfloat16 sum of 4,096 terms stalls long before."""
    norm = config.build(4096).to(dtype)
    x = (scale * (torch.randn(2, 4096) + 1)).to(dtype)
    if isinstance(norm, BatchNorm):  # as many tokens to a statistic as there are features else
        norm, x = config.build(2).to(dtype), x.T
    out = norm(x)
    assert out.dtype == dtype
    half_step = torch.finfo(dtype).eps
    wide, axis = x.double(), 0 if isinstance(norm, BatchNorm) else -1
    centred = isinstance(norm, LayerNorm | OffsetLayerNorm | BatchNorm)
    wide = wide - wide.mean(axis, keepdim=True) if centred else wide
    eps = 0.0 if isinstance(norm, ScaleNorm) else norm.eps
    expected = wide * (wide.square().mean(axis, keepdim=True) + eps).rsqrt()
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
    if (weight := getattr(norm, "weight", None)) is not None:
        narrow.float().sum().backward()
        assert weight.grad.dtype == torch.float32
    assert all(buffer.dtype == torch.float32 for buffer in norm.buffers())


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_zeros_stay_finite(config: NormConfig) -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    out = config.build(4)(x)
    assert torch.equal(out, torch.zeros(2, 4))
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_impossible_epsilon_is_refused(config: type[NormConfig], eps: float) -> None:
    with pytest.raises(ValueError, match="eps"):
        config(eps=eps)


@pytest.mark.parametrize("momentum", [0.0, -0.1, 1.1])
def test_impossible_momentum_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum"):
        BatchNormConfig(momentum=momentum)


@pytest.mark.parametrize("config", named(NORM_RECORDS))
def test_a_wrong_width_is_refused(config: NormConfig) -> None:
    if isinstance(config, ScaleNormConfig) or not list(config.build(4).parameters()):
        pytest.skip("one gain, or none, fits every width")
    with pytest.raises((RuntimeError, TypeError, ValueError), match=r"shape|d_model|size"):
        config.build(4)(torch.randn(2, 5))


def test_no_norm_is_nothing() -> None:
    x = torch.randn(2, 3, 4)
    assert NoNorm()(x) is x
    assert NoNorm()(x, torch.ones(2, 3, dtype=torch.bool)) is x
    assert not NoNorm().state_dict()


# Batch norm.


def ragged(batch: int, seq: int) -> Tensor:
    """Real tokens on the left, at least one a row."""
    return torch.arange(seq) < torch.randint(1, seq + 1, (batch, 1))


def torchs(norm: BatchNorm) -> nn.BatchNorm1d:
    """Torch's own with the same parameters."""
    theirs = nn.BatchNorm1d(len(norm.weight), eps=norm.eps, momentum=norm.momentum)
    theirs.load_state_dict(norm.state_dict(), strict=False)
    return theirs.to(norm.weight.dtype)


@pytest.mark.parametrize(
    ("dtype", "tight"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["single", "double"]
)
@pytest.mark.parametrize("padded", [False, True])
def test_batch_norm_is_torchs_over_the_real_tokens(
    dtype: torch.dtype, tight: float, padded: bool
) -> None:
    """In training and at inference, gradients and running statistics too."""
    ours = started(BatchNorm(5, eps=1e-3, momentum=0.3)).to(dtype)
    theirs = torchs(ours)
    for step in range(4):
        valid = ragged(4, 6) if padded else torch.ones(4, 6, dtype=torch.bool)
        x = (2 * torch.randn(4, 6, 5) + step).to(dtype)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = ours(a, valid if padded else None)[valid], theirs(b[valid])
        assert_close(found, expected, rtol=tight, atol=3 * tight)
        g = torch.randn_like(expected)
        (found * g).sum().backward()
        (expected * g).sum().backward()
        assert_close(a.grad, b.grad, rtol=10 * tight, atol=10 * tight)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(p.grad, q.grad, rtol=10 * tight, atol=30 * tight)
    assert_close(ours.running_mean, theirs.running_mean, rtol=tight, atol=tight)
    assert_close(ours.running_var, theirs.running_var, rtol=tight, atol=tight)
    x = torch.randn(2, 3, 5).to(dtype)
    expected = theirs.eval()(x.flatten(0, 1)).view_as(x)
    assert_close(ours.eval()(x), expected, rtol=tight, atol=tight)


def test_batch_norm_equals_the_formula() -> None:
    norm, x, valid = started(BatchNorm(3)), 3 * torch.randn(3, 4, 3) + 1, ragged(3, 4)
    expected = batch_paper(norm, x, valid)[valid]
    assert_close(norm(x, valid)[valid].double(), expected, rtol=1e-5, atol=1e-5)
    found = norm.double()(x.double(), valid)[valid]
    assert_close(found, batch_paper(norm, x, valid)[valid], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [1e4, float("nan"), float("inf")])
def test_padding_changes_neither_output_nor_statistics_nor_gradient(garbage: float) -> None:
    x, valid = torch.randn(3, 4, 5), torch.tensor([3, 1, 4])[:, None] > torch.arange(4)
    seen = []
    for inputs in (x, x.masked_fill(~valid[..., None], garbage)):
        norm, inputs = BatchNorm(5), inputs.clone().requires_grad_()
        norm(inputs, valid)[valid].square().sum().backward()
        assert inputs.grad is not None
        assert torch.equal(inputs.grad[~valid], torch.zeros(4, 5))
        seen.append((norm(inputs, valid)[valid], *norm.buffers(), inputs.grad, norm.weight.grad))
    assert_close(seen[0], seen[1], rtol=0, atol=0)


@pytest.mark.parametrize("real", [0, 1])
def test_too_few_tokens_for_a_variance_leave_the_running_statistics_alone(real: int) -> None:
    norm, x = started(BatchNorm(4)), torch.randn(2, 3, 4, requires_grad=True)
    norm(torch.randn(2, 3, 4))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    valid = torch.arange(6).view(2, 3) < real
    out = norm(x, valid)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for name, buffer in norm.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_statistics_are_buffers_that_inference_reads_and_leaves() -> None:
    norm = started(BatchNorm(4)).eval()
    assert list(norm.state_dict()) == ["weight", "bias", "running_mean", "running_var"]
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    x = torch.randn(2, 3, 4)
    expected = norm.weight * x / (1 + norm.eps) ** 0.5 + norm.bias
    assert_close(norm(x), expected, rtol=1e-6, atol=1e-6)
    assert_close(dict(norm.named_buffers()), before, rtol=0, atol=0)


def test_several_processes_are_refused_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = BatchNorm(4), torch.randn(2, 3, 4)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.raises(ValueError, match=r"3 processes .* one process only"):
        norm(x)
    assert norm.eval()(x).isfinite().all()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert norm.train()(x).isfinite().all()


def test_a_bias_is_there_where_it_is_asked_for() -> None:
    assert {name for name, _ in LayerNormConfig(bias=False).build(4).named_parameters()} == {
        "weight"
    }
    assert LayerNormConfig().build(4).bias is not None


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape[-1], generator=generator, dtype=dtype, requires_grad=True)
    return x, weight


@pytest.mark.parametrize(
    "shape", [(7,), (1, 1), (5, 3), (2, 3, 16), (2, 1, 3, 33), (0, 8), (3, 0, 8)]
)
def test_first_and_second_derivatives_are_those_of_numbers(shape: tuple[int, ...]) -> None:
    x, weight = drawn(*shape)
    if x.numel():
        assert gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (x, weight))
        assert gradgradcheck(lambda x, w: rms_norm(x, w, 1e-6), (x, weight))
    y = rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(y, functional.rms_norm(x, weight))
    of_x, of_weight = grad(y.sum(), (x, weight))
    assert (of_x.shape, of_weight.shape) == (x.shape, weight.shape)


@pytest.mark.parametrize("size", [1e-20, 1e-4, 1.0, 1e4, 1e15])
def test_float32_is_within_rounding_of_float64(size: float) -> None:
    x, weight = drawn(64, 48, dtype=torch.float32)
    wide, wide_weight = (size * x).double().detach().requires_grad_(), weight.double().detach()
    x = wide.float().detach().requires_grad_()
    wide_weight.requires_grad_()
    g = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)) + 3.0
    ours = grad(rms_norm(x, weight, 1e-6), (x, weight), g)
    plain = grad(functional.rms_norm(wide, wide_weight), (wide, wide_weight), g.double())
    torchs = grad(F.rms_norm(x, (48,), weight, 1e-6), (x, weight), g)
    for mine, theirs, true in zip(ours, torchs, plain, strict=True):
        largest = true.abs().max()
        assert (mine - true).abs().max() <= 4 * (theirs - true).abs().max() + 2e-6 * largest


def test_only_the_requested_gradients_are_computed() -> None:
    x, weight = drawn(4, 8)
    fixed = weight.detach()
    [of_x] = grad(rms_norm(x, fixed, 1e-6).sum(), [x])
    torch.testing.assert_close(of_x, grad(functional.rms_norm(x, fixed).sum(), [x])[0])
    [of_weight] = grad(rms_norm(x.detach(), weight, 1e-6).sum(), [weight])
    expected = grad(functional.rms_norm(x.detach(), weight).sum(), [weight])[0]
    torch.testing.assert_close(of_weight, expected)


def test_views_and_broadcast_gradients() -> None:
    x, weight = drawn(6, 4, 8)
    strided = x.transpose(0, 1)[:, ::2]
    ours = grad(rms_norm(strided, weight, 1e-6).mean(), (x, weight))
    plain = grad(functional.rms_norm(strided, weight).mean(), (x, weight))
    torch.testing.assert_close(ours, plain)


def test_a_backward_pass_under_autocast_stays_in_float32() -> None:
    x, weight = drawn(16, 32, dtype=torch.float32)
    g = torch.randn(16, 32)
    expected = grad(rms_norm(x, weight, 1e-6), (x, weight), g)
    with torch.autocast("cpu", torch.bfloat16):
        y = rms_norm(x, weight, 1e-6)
        found = grad(y, (x, weight), g)
    assert y.dtype == torch.float32
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_and_transforms_are_torchs() -> None:
    x, weight = drawn(3, 8)

    def f(x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, 1e-6)

    ones = torch.ones_like(x)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, ones))).tangent
    _, expected = torch.func.jvp(f, (x,), (ones,))
    torch.testing.assert_close(tangent, expected)
    rows = torch.func.vmap(torch.func.grad(lambda one: f(one).sum()))(x)
    torch.testing.assert_close(rows, grad(f(x).sum(), x)[0])
    narrow = x.detach().bfloat16().requires_grad_()
    assert norms._differentiated_on_cpu(x, weight)
    assert not norms._differentiated_on_cpu(narrow, weight.bfloat16())
    assert not norms._differentiated_on_cpu(x.detach(), weight.detach())
    with torch.no_grad():
        assert not norms._differentiated_on_cpu(x, weight)
