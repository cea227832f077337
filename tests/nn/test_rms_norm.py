"""RMSNorm by LayerNorm's kernel: the gradients of the plain definition, whatever surrounds it."""

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.nn import functional as F

from addnorm.nn import functional
from addnorm.nn import rms_norm as module
from addnorm.nn.rms_norm import rms_norm


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


def test_only_what_is_wanted_is_computed() -> None:
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
    assert module._differentiated_on_cpu(x, weight)
    assert not module._differentiated_on_cpu(narrow, weight.bfloat16())
    assert not module._differentiated_on_cpu(x.detach(), weight.detach())
    with torch.no_grad():
        assert not module._differentiated_on_cpu(x, weight)
