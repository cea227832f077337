"""The choice of a kernel for dropout, sum and norm; the tests of the operator have the numbers."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.nn import add_norm
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.dropout import Dropout
from addnorm.nn.norms import LayerNorm, OffsetRMSNorm, RMSNorm
from addnorm.nn.residuals import PostNorm

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

WIDTH = 32
SHAPE = (2, add_norm.MANY // WIDTH // 2, WIDTH)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The sublayers' outputs that the operator was called with."""
    load_operator(add_norm.OPERATOR)
    seen: list[Tensor] = []
    by_operator = add_norm.add_norm
    monkeypatch.setattr(
        add_norm, "add_norm", lambda f, *x, **o: (seen.append(f), by_operator(f, *x, **o))[1]
    )
    with use_choices(KernelChoices(add_norm="operator")):
        yield seen


def ended(norm: nn.Module, f: Tensor, x: Tensor, p: float = 0.0) -> Tensor:
    return PostNorm(norm, p)(x, lambda _: f)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", add_norm.DTYPES, ids=str)
def test_by_choice_the_operator_ends_a_sublayer(
    norm: type[LayerNorm | RMSNorm], dtype: torch.dtype, calls: list[Tensor]
) -> None:
    made, f, x = norm(WIDTH), torch.randn(SHAPE).to(dtype).requires_grad_(), torch.randn(SHAPE)
    got = ended(made, f, x)
    assert len(calls) == 1
    torch.testing.assert_close(got, made(x + f))
    of_f, *of_weights = torch.autograd.grad(got.square().sum(), [f, *made.parameters()])
    assert of_f.dtype is dtype
    assert of_f.shape == f.shape
    assert all(grad.any() for grad in of_weights)


def test_dropout_keeps_its_share_in_training_alone(calls: list[Tensor]) -> None:
    layer = PostNorm(RMSNorm(WIDTH), 0.25)
    zeros, ones = torch.zeros(SHAPE), torch.ones(SHAPE, requires_grad=True)
    kept = layer(zeros, lambda _: ones) > 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.02
    again = layer(zeros, lambda _: ones) > 0
    assert not torch.equal(kept, again)
    assert bool((layer.eval()(zeros, lambda _: ones) > 0).all())
    assert len(calls) == 3


def test_a_mask_follows_from_the_random_state(calls: list[Tensor]) -> None:
    layer, f, x = PostNorm(LayerNorm(WIDTH), 0.5), torch.randn(SHAPE), torch.randn(SHAPE)
    state = torch.get_rng_state()
    first = layer(x, lambda _: f)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.equal(layer(x, lambda _: f), first)
    assert torch.equal(torch.get_rng_state(), after)
    assert len(calls) == 2


def test_what_it_does_not_know_is_left_to_torch(calls: list[Tensor]) -> None:
    norm, f, x = LayerNorm(WIDTH), torch.randn(SHAPE, requires_grad=True), torch.randn(SHAPE)
    seen = list[Tensor]()
    watched = LayerNorm(WIDTH)
    watched.register_forward_hook(lambda _, inputs, y: seen.append(y))
    ended(watched, f, x)
    assert len(seen) == 1
    dropping = PostNorm(norm, 0.5)
    dropping.dropout.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    dropping(x, lambda _: f)
    assert len(seen) == 2
    ended(OffsetRMSNorm(WIDTH), f, x)
    ended(norm.double(), f.double(), x.double())
    ended(norm.float(), f[:, :-1], x[:, :-1])
    ended(norm, f, x.bfloat16())
    with torch.no_grad():
        ended(norm, f, x)
    with use_choices(KernelChoices()):
        ended(norm, f, x)
    assert not calls


def test_the_operator_is_left_out_of_transforms(calls: list[Tensor]) -> None:
    layer, x = PostNorm(LayerNorm(WIDTH)), torch.randn(SHAPE)
    torch.func.grad(lambda f: layer(x, lambda _: f).sum())(torch.randn(SHAPE))
    assert not calls
    assert isinstance(layer.dropout, Dropout)


def test_weights_of_any_layout_are_read_in_order(calls: list[Tensor]) -> None:
    norm = LayerNorm(WIDTH)
    norm.weight = nn.Parameter(torch.randn(2 * WIDTH)[::2])
    norm.bias = nn.Parameter(torch.randn(WIDTH, 3)[:, 1])
    f, x = torch.randn(2, *SHAPE)
    y = ended(norm, f, x)
    assert len(calls) == 1
    expected = F.layer_norm(f + x, (WIDTH,), norm.weight, norm.bias)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    dy = torch.randn(y.shape)
    found, wide = (torch.autograd.grad(z, [*norm.parameters()], dy) for z in (y, expected))
    for got, want in zip(found, wide, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_norms_with_a_forward_or_hooks_of_all_modules_are_called(calls: list[Tensor]) -> None:
    f, x = torch.randn(2, *SHAPE)
    norm = LayerNorm(WIDTH)
    norm.forward = lambda *_: torch.zeros(SHAPE)
    assert not ended(norm, f, x).any()
    seen: list[nn.Module] = []
    hook = register_module_forward_hook(lambda module, *_: seen.append(module))
    norm = LayerNorm(WIDTH)
    ended(norm, f, x)
    hook.remove()
    assert norm in seen
    assert not calls
