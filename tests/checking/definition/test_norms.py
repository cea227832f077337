"""Norms against the papers' formulas."""

import math

import torch

from addnorm.checking.definition.norms import Observed, normalised
from addnorm.nn.norms import (
    BatchNormConfig,
    DynamicErfConfig,
    DynamicTanhConfig,
    LayerNormConfig,
    NormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)

X = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).double()
ONES, ZEROS = torch.ones(3).double(), torch.zeros(3).double()


def norm(
    config: NormConfig, weights: dict[str, torch.Tensor], observed: Observed | None = None
) -> object:
    return normalised(config, weights, X, observed).round(decimals=4).tolist()


def test_norms() -> None:
    layer_norm = LayerNormConfig(eps=1e-12)
    assert norm(layer_norm, {"weight": ONES}) == [[-1.2247, 0, 1.2247]] * 2
    assert norm(layer_norm, {"weight": ONES, "bias": ONES}) == [[-0.2247, 1, 2.2247]] * 2
    rms = (X / X.square().mean(1, keepdim=True).sqrt()).round(decimals=4).tolist()
    assert norm(RMSNormConfig(eps=1e-12), {"weight": ONES}) == rms
    assert norm(OffsetRMSNormConfig(eps=1e-12), {"weight": ZEROS}) == rms
    assert norm(ScaleNormConfig(), {"weight": torch.tensor(3.0).double().sqrt()}) == rms
    assert norm(RMSNormConfig(eps=1e-12, gain="none"), {}) == rms
    offset = LayerNormConfig(eps=1e-12, gain="offset")
    assert norm(offset, {"weight": ZEROS, "bias": ONES}) == [[-0.2247, 1, 2.2247]] * 2
    assert norm(offset, {"weight": ONES}) == [[-2.4495, 0, 2.4495]] * 2
    assert norm(LayerNormConfig(eps=1e-12, gain="none"), {}) == [[-1.2247, 0, 1.2247]] * 2
    assert normalised(None, {}, X) is X


def test_epsilon_counts() -> None:
    assert (
        norm(RMSNormConfig(eps=100.0), {"weight": ONES})[0]
        == (X[0] / math.sqrt(100 + 14 / 3)).round(decimals=4).tolist()
    )  # type: ignore[index]


def test_dynamic_tanh() -> None:
    weights = {"alpha": torch.tensor(0.5).double(), "weight": 2 * ONES, "bias": ONES}
    expected = [[round(2 * math.tanh(0.5 * x) + 1, 4) for x in row] for row in X.tolist()]
    assert norm(DynamicTanhConfig(), weights) == expected


def test_dynamic_erf() -> None:
    weights = {"weight": 2 * ONES, "bias": ONES}
    weights |= {"alpha": torch.tensor(0.5).double(), "shift": torch.tensor(-0.3).double()}
    expected = [[round(2 * math.erf(0.5 * x - 0.3) + 1, 4) for x in row] for row in X.tolist()]
    assert norm(DynamicErfConfig(), weights) == expected


def test_batch_norm_in_training_and_after() -> None:
    weights = {"weight": ONES, "bias": ZEROS, "running_mean": ONES, "running_var": 4 * ONES}
    config = BatchNormConfig(eps=1e-12, momentum=0.3)
    assert norm(config, weights) == [[0, 0.5, 1], [1.5, 2, 2.5]]
    observed: Observed = {}
    assert norm(config, weights, observed) == [[-1] * 3, [1] * 3]
    mean, variance, momentum = observed[ONES]
    assert mean.tolist() == [2.5, 3.5, 4.5]
    assert variance.tolist() == [4.5] * 3  # unbiased
    assert momentum == 0.3
