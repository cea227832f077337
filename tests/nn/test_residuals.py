"""Placements: the papers' equations, identity gradient paths, and all sublayers."""

import pytest
import torch
from tests.contracts import (
    FEEDFORWARD_RECORDS,
    NORM_RECORDS,
    RESIDUAL_RECORDS,
    check_gradients,
    check_module,
    check_records,
    named,
)
from torch import nn
from torch.testing import assert_close

from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.hyper_connections import CollapsedNorm
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NoNorm, NormConfig, RMSNormConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    Depth,
    LayerScaleConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    ResidualConfig,
    SandwichNormConfig,
    deepnorm_constants,
)

DEPTH = Depth(decoder=3, causal=True)


def test_every_placement_has_a_record() -> None:
    check_records(ResidualConfig, RESIDUAL_RECORDS)


@pytest.mark.parametrize("config", named(RESIDUAL_RECORDS))
def test_contract(config: ResidualConfig) -> None:
    x = torch.randn(2, 3, 6)
    check_module(
        lambda: config.build(6, LayerNormConfig(), 0.1, DEPTH),
        lambda residual, dtype: residual(x.to(dtype).requires_grad_(), torch.tanh),
    )


def test_each_placement_equals_its_formula() -> None:
    x, norm = torch.randn(2, 3, 6), LayerNormConfig().build(6)
    post = PostNormConfig().build(6, LayerNormConfig(), 0.0, DEPTH)
    pre = PreNormConfig().build(6, LayerNormConfig(), 0.0, DEPTH)
    assert torch.equal(post(x, torch.sin), norm(x + x.sin()))
    assert torch.equal(pre(x, torch.sin), x + norm(x).sin())
    sandwich = SandwichNormConfig().build(6, LayerNormConfig(), 0.0, DEPTH)
    assert torch.equal(sandwich(x, torch.sin), x + norm(norm(x).sin()))
    scaled = LayerScaleConfig(start=0.5).build(6, LayerNormConfig(), 0.0, DEPTH)
    torch.nn.init.normal_(scaled.layer_scale)
    assert torch.equal(scaled(x, torch.sin), x + scaled.layer_scale * norm(x).sin())
    of_output = SandwichNormConfig(norms="output").build(6, LayerNormConfig(), 0.0, DEPTH)
    assert torch.equal(of_output(x, torch.sin), x + norm(x.sin()))
    deep = DeepNormConfig().build(6, LayerNormConfig(), 0.0, DEPTH)
    assert torch.equal(deep(x, torch.sin), norm(6**0.25 * x + x.sin()))
    branch = ParallelConfig(norms="each").build(6, LayerNormConfig(), 0.0, DEPTH)
    assert torch.equal(branch(x, torch.sin), norm(x).sin())
    shared = ParallelConfig(norms="one")
    assert torch.equal(shared.build(6, LayerNormConfig(), 0.0, DEPTH)(x, torch.sin), x.sin())
    assert torch.equal(shared.build_shared(6, LayerNormConfig())(x), norm(x))


@pytest.mark.parametrize(
    ("depth", "alpha", "beta"),
    [
        (Depth(encoder=12), 24**0.25, 96**-0.25),
        (Depth(decoder=12, causal=True), 24**0.25, 96**-0.25),
        (Depth(encoder=18, decoder=6), 0.81 * (18**4 * 6) ** 0.0625, 0.87 / (18**4 * 6) ** 0.0625),
        (Depth(encoder=18, decoder=6, causal=True), 18**0.25, 72**-0.25),
    ],
)
def test_the_constants_of_deepnorm(depth: Depth, alpha: float, beta: float) -> None:
    """Wang et al. 2022, fig. 2, right."""
    assert deepnorm_constants(depth) == pytest.approx((alpha, beta), rel=1e-12)


@pytest.mark.parametrize("config", named(RESIDUAL_RECORDS))
def test_a_residual_stream_without_a_norm_ends_in_one(config: ResidualConfig) -> None:
    final = config.build_final(6, RMSNormConfig())
    final = final.norm if isinstance(final, CollapsedNorm) else final
    normed = isinstance(config, PostNormConfig | DeepNormConfig)
    assert isinstance(final, NoNorm if normed else type(RMSNormConfig().build(6)))


def test_pre_norm_has_an_identity_path() -> None:
    """`y = x + F(x)`, so `dy/dx = 1 + dF/dx`: with F = 0 the gradient passes untouched."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    grad = torch.randn(2, 3, 4)
    PreNormConfig().build(4, LayerNormConfig(), 0.0, DEPTH)(x, torch.zeros_like).backward(grad)
    assert torch.equal(x.grad, grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", named(RESIDUAL_RECORDS))
def test_dropout_acts_on_the_sublayer_in_training_alone(config: ResidualConfig) -> None:
    residual = config.build(64, LayerNormConfig(), 0.5, DEPTH)
    x, noise = torch.randn(1, 8, 64), torch.randn(1, 8, 64)
    kept = residual(x, torch.zeros_like)
    dropped = residual(x, lambda h: noise)
    assert_close(kept, residual.eval()(x, torch.zeros_like))  # the residual itself is never dropped
    assert not torch.allclose(dropped, residual(x, lambda h: noise))
    assert torch.equal(residual(x, lambda h: noise), residual(x, lambda h: noise))


@pytest.mark.parametrize("config", named(RESIDUAL_RECORDS))
@pytest.mark.parametrize("norm", named(NORM_RECORDS))
def test_gradients_around_each_norm(config: ResidualConfig, norm: NormConfig) -> None:
    residual = config.build(4, norm, 0.0, DEPTH)
    x = torch.randn(1, 2, 4)
    check_gradients(residual, lambda m, x: m(x, torch.tanh), x, twice=True)


class Sublayer(nn.Module):
    """A feed-forward layer in its residual."""

    def __init__(self, residual: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.residual = residual
        self.feedforward = feedforward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.residual(x, self.feedforward)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("config", named(RESIDUAL_RECORDS))
@pytest.mark.parametrize("feedforward", named(FEEDFORWARD_RECORDS))
def test_gradients_around_each_feedforward(
    config: ResidualConfig, feedforward: AnyFeedForwardConfig
) -> None:
    module = Sublayer(config.build(4, LayerNormConfig(), 0.0, DEPTH), feedforward.build(4))
    smooth = feedforward.kind == "moe" or feedforward.activation not in ("relu", "squared_relu")
    check_gradients(module, lambda m, x: m(x), torch.randn(1, 2, 4), twice=smooth)


def test_shapes_of_the_original() -> None:
    module = Sublayer(
        PostNormConfig().build(512, LayerNormConfig(), 0.1, DEPTH),
        FeedForwardConfig(d_ff=2048).build(512),
    )
    assert module(torch.randn(2, 10, 512)).shape == (2, 10, 512)
