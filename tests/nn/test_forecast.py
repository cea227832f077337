"""The forecast head: pools of patches, restored levels, and the models that cannot have it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module, context
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.instance_norm import WindowStatistics
from addnorm.nn.patches import SeriesEmbeddingConfig

POOLINGS = ["flatten", "mean", "last"]
every_pooling = pytest.mark.parametrize("pooling", POOLINGS)
PAST = SeriesEmbeddingConfig(channels=2, patch=3, stride=2, norm="instance", look_back=9)
SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 1,
    "attention": AttentionConfig(n_heads=2),
    "dropout": 0.0,
}


def forecaster(pooling: Any = "flatten", horizon: int = 5, **series: Any) -> EncoderConfig:
    head = ForecastHeadConfig(horizon=horizon, pooling=pooling)
    return EncoderConfig(**SMALL, input=replace(PAST, **series), head=head)


@every_pooling
@pytest.mark.parametrize("variables", ["mixed", "independent"])
def test_contract(pooling: Any, variables: Any) -> None:
    config = forecaster(pooling, variables=variables, affine="learned")
    check_config(config, ModelConfig)
    series = torch.randn(3, 2, 9)
    check_module(config.build, lambda model, _: model(series))
    assert config.build()(series).shape == (3, 2, 5)
    check_gradients(config.build(), lambda model, x: model(x), series, twice=False)


@every_pooling
def test_equals_a_plain_product(pooling: Any) -> None:
    """`restore(W pool(x) + b)`, the patches side by side, their mean or the last."""
    head = ForecastHeadConfig(horizon=4, pooling=pooling).build(6, 2, 3).double()
    x, mean = torch.randn(5, 3, 6).double(), torch.randn(5, 2, 1).double()
    statistics = WindowStatistics(mean, mean.exp())
    got = head(x, replace(context(5, 3), statistics=statistics))
    pooled = {"flatten": x.reshape(5, 18), "mean": x.mean(1), "last": x[:, -1]}[pooling]
    plain = (pooled @ head.proj.weight.T + head.proj.bias).view(5, 2, 4)
    assert_close(got, plain * mean.exp() + mean, rtol=0, atol=1e-12)
    assert_close(head(x, context(5, 3)), plain, rtol=0, atol=1e-12)


@settings(max_examples=25)
@given(
    look_back=st.integers(1, 20),
    horizon=st.integers(1, 7),
    patch=st.integers(1, 6),
    stride=st.integers(1, 6),
    shift=st.sampled_from([0.0, 5.0, -400.0]),
)
def test_a_forecast_follows_the_level_of_its_past(
    look_back: int, horizon: int, patch: int, stride: int, shift: float
) -> None:
    """With an instance norm, a past that lies higher is forecast as much higher."""
    series = {"patch": patch, "stride": min(stride, patch), "look_back": look_back}
    model = forecaster(horizon=horizon, variables="independent", **series).build().double().eval()
    past = torch.randn(2, 2, look_back).double()
    assert_close(model(past + shift), model(past) + shift, rtol=0, atol=1e-8)
    assert model(past).shape == (2, 2, horizon)


def test_an_independent_variable_is_forecast_alone() -> None:
    model = forecaster(variables="independent").build().eval()
    past = torch.randn(3, 2, 9)
    other = torch.stack([past[:, 0], torch.randn(3, 9)], 1)
    assert_close(model(past)[:, 0], model(other)[:, 0], rtol=0, atol=1e-6)
    mixed = forecaster().build().eval()
    assert not torch.allclose(mixed(past)[:, 0], mixed(other)[:, 0], atol=1e-4)


def test_another_length_of_the_past_is_refused() -> None:
    with pytest.raises(InputError, match="makes 6 patches, and the head reads 4"):
        forecaster().build()(torch.randn(1, 2, 13))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (EncoderConfig, {"head": ForecastHeadConfig()}, "model.input.kind = 'series'"),
        (
            EncoderConfig,
            {"head": ForecastHeadConfig(), "input": replace(PAST, look_back=None)},
            "model.input.look_back is missing",
        ),
        (
            EncoderConfig,
            {"head": ForecastHeadConfig(), "input": PAST, "exits": (1,), "n_layers": 2},
            "no early exits",
        ),
        (
            EncoderConfig,
            {
                "head": ClassificationHeadConfig(),
                "input": replace(PAST, variables="independent"),
            },
            "reads them 'mixed'",
        ),
        (EncoderDecoderConfig, {"input": replace(PAST, variables="independent")}, "a text is"),
    ],
)
def test_rejects_other_inputs_and_missing_sizes(
    config: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config(**{**SMALL, **changes})
