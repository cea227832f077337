"""The picture of residual streams, drawn by the code that it shows."""

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor, nn

from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.residuals import Depth, ResidualConfig

SUBLAYERS = 48


def hyper_connections() -> Figure:
    """The size of the streams by depth, with sublayers that add nothing and drawn weights."""
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    parts: dict[str, ResidualConfig] = {
        "hyper_connections": HyperConnectionsConfig(dynamic=False),
        "mhc": ManifoldConnectionsConfig(),
    }
    for (name, part), colour in zip(parts.items(), ("tab:orange", "tab:blue"), strict=True):
        for seed in range(8):
            label = name if seed == 0 else None
            axis.plot(_sizes(part, seed), color=colour, alpha=0.6, label=label)
    axis.set(yscale="log", xlabel="sublayer", ylabel="RMS of the streams")
    axis.legend()
    return figure


@torch.no_grad()
def _sizes(part: ResidualConfig, seed: int) -> list[float]:
    torch.manual_seed(seed)
    x, sizes = torch.randn(1, 16, 32), [1.0]
    for sublayer in range(SUBLAYERS):
        residual = part.build(32, RMSNormConfig(), 0.0, Depth(sublayer=sublayer))
        _move(residual)
        x = residual(x, torch.zeros_like)
        sizes.append(float(x.square().mean().sqrt()))
    return sizes


def _move(residual: nn.Module) -> None:
    """Draw a step away from the first weights, as training makes it."""
    for parameter in residual.parameters():
        moved: Tensor = 0.1 * torch.randn_like(parameter)
        parameter.add_(moved)
