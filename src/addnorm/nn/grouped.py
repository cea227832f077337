"""Feed-forward layers of equal shape as one grouped product: each on its own rows of one matrix."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.linear import Linear

ALIGNED = 16
"""Bytes of which the rows of every factor must be a multiple: torch's rule for grouped products."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The types that torch multiplies in groups; float64 is left to one product for each layer."""


def grouped_feedforward(
    x: Float[Tensor, "rows d_model"],
    experts: Sequence[FeedForward] | Sequence[GatedFeedForward],
    counts: Int[Tensor, " n_experts"],
) -> Float[Tensor, "rows d_model"]:
    """Apply expert e to the e-th group of `counts[e]` rows, by one grouped product for each map.

    `FeedForward` and `GatedFeedForward` of x, whose equations are theirs; equal to one call for
    each group up to rounding, for layers that `can_group`. The weights stay those of each layer:
    they are stacked here, and their gradients go back to them.
    """

    def product(x: Tensor, layers: Sequence[Linear]) -> Tensor:
        return _grouped_linear(x, layers, counts)

    first = experts[0]
    h = product(x, [expert.up_proj for expert in experts])
    gated = [expert.gate_proj for expert in experts if isinstance(expert, GatedFeedForward)]
    h = first.activation(product(x, gated)) * h if gated else first.activation(h)
    return product(first.dropout(h), [expert.down_proj for expert in experts])


def can_group(experts: Sequence[nn.Module], x: Float[Tensor, "rows d_model"]) -> bool:
    """Whether `grouped_feedforward` computes these experts: ours, all alike, with aligned rows.

    False for custom layers, replaced or hooked parts, widths whose rows are no multiple of 16
    bytes, and float64.
    """
    kinds = {type(expert) for expert in experts}
    if x.dtype not in DTYPES or torch.is_autocast_enabled(x.device.type):
        return False
    if kinds not in ({FeedForward}, {GatedFeedForward}):
        return False
    return len({_description(expert) for expert in experts}) == 1 and all(
        _is_plain(layer, x) for expert in experts for layer in expert.modules()
    )


def _grouped_linear(x: Tensor, layers: Sequence[Linear], counts: Tensor) -> Tensor:
    weight = torch.stack([layer.weight for layer in layers]).transpose(1, 2)
    y = F.grouped_mm(x, weight, offs=counts.cumsum(0).int())
    named = (item for layer in layers for item in layer.named_parameters())
    biases: list[Tensor] = [tensor for name, tensor in named if name == "bias"]
    if not biases:
        return y
    return y + torch.stack(biases).repeat_interleave(counts, dim=0, output_size=len(x))


def _description(expert: nn.Module) -> tuple[object, ...]:
    """What has to be the same in all experts: function, dropout, and the shape of every weight."""
    assert isinstance(expert, FeedForward | GatedFeedForward)
    shapes = tuple((name, weight.shape) for name, weight in expert.named_parameters())
    return expert.activation, expert.dropout.p, expert.training, shapes


def _is_plain(layer: nn.Module, x: Tensor) -> bool:
    """Whether a part is as it was built: no hooks and, of linear maps, aligned weights as `x`."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks  # pyright: ignore[reportPrivateUsage]
    if any(hooks):
        return False
    if not isinstance(layer, nn.Linear):
        return True
    aligned = all(n * x.element_size() % ALIGNED == 0 for n in layer.weight.shape)
    return type(layer) is Linear and layer.weight.dtype == x.dtype and aligned
