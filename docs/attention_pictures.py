"""The pictures of attention cores and mixers, drawn by the code that they show."""

import math

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.sinks import SinkCore
from addnorm.nn.masks import Causal


def sinks() -> Figure:
    """The weights of one head of a causal decoder, without a sink and with two."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    q, k = torch.randn(2, 1, 1, 12, 8)
    image = None
    for axis, sink in zip(axes, (-math.inf, 1.0, 3.0), strict=True):
        core = SinkCore(DotProduct(8**-0.5), 1)
        core.sinks.data.fill_(sink)
        weights = core.weights(q, k, Causal())[0, 0].detach()
        image = axis.imshow(weights, vmin=0, vmax=1, cmap="Blues")
        name = "without a sink" if sink == -math.inf else f"sink s = {sink:g}"
        axis.set(title=f"{name}: {weights.sum(-1).mean():.2f} a row", xlabel="key")
    assert image is not None
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes)
    return figure
