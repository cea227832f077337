"""Averages of weights over time: an exponential moving average, and the mean of checkpoints."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from addnorm.models.weights import Weights, copy_into, weights_of
from addnorm.training.parallel.tensors import local


class MovingAverage:
    """`θ̄ ← d θ̄ + (1 - d) θ` with `d = min(decay, (1 + n) / (10 + n))` after `n` updates.

    The smaller early decay forgets the random start (as in TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights: Weights = {name: w.clone() for name, w in weights_of(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        current = weights_of(model)
        averages = [local(weight) for weight in self.weights.values()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            averages, [local(current[name]) for name in self.weights], 1 - decay
        )


@torch.no_grad()
def mean(checkpoints: Iterable[Mapping[str, Tensor]]) -> Weights:
    """The mean of several sets of weights, summed in float64 (Vaswani et al. 2017, §6.1)."""
    total: Weights = {}
    count = 0
    for weights in checkpoints:
        count += 1
        for name, weight in weights.items():
            total[name] = weight.double() + total.get(name, 0.0)
    if not count:
        raise ValueError("the mean of no checkpoints is undefined")
    return {name: (weight / count).float() for name, weight in total.items()}


@contextmanager
def swapped(model: nn.Module, weights: Weights | None) -> Generator[None]:
    """Temporarily replace the model's weights by `weights`."""
    if weights is None:
        yield
        return
    before = {name: w.clone() for name, w in weights_of(model).items()}
    try:
        copy_into(model, weights)
        yield
    finally:
        copy_into(model, before)
