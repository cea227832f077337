"""How much the loss depends on each unit, by the gradient of a gate on its output."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.models import Model
from addnorm.prune.units import Units

Importance = Mapping[str, Float[Tensor, " units"]]
"""The importance of each unit by the path of its sublayer."""


@contextmanager
def gated(
    units: Sequence[Units], gates: Mapping[str, Float[Tensor, "#batch units"]]
) -> Generator[None]:
    """Multiply the output of each unit by its gate, `ξ_u · u(x)`: 1 keeps it, 0 masks it."""
    with ExitStack() as hooks:
        for one in units:
            if one.path in gates:
                gate = gates[one.path].repeat_interleave(one.width, -1)[:, None]
                hooks.enter_context(_scaled_input(one.projection, gate))
        yield


@contextmanager
def _scaled_input(
    projection: nn.Module, gate: Float[Tensor, "#batch 1 features"]
) -> Generator[None]:
    def scale(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        rows = inputs[0].shape[0] // gate.shape[0] if len(gate) > 1 else 1
        return (inputs[0] * gate.repeat_interleave(rows, 0),)  # independent variables are rows

    hook = projection.register_forward_pre_hook(scale)
    try:
        yield
    finally:
        hook.remove()


def importance(
    model: Model,
    units: Sequence[Units],
    batches: Iterable[Batch],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Float[Tensor, " units"]]:
    """`I_u = mean_x |∂L(x) / ∂ξ_u|` at `ξ = 1`, the mean over examples `x`.

    For heads this is Michel et al. 2019, eq. 2; for a feed-forward row the chain rule makes it
    `|Σ_t h_t ∂L/∂h_t|`, the first-order Taylor criterion of Molchanov et al. 2017, eq. 8. `loss`
    sums over the targets of a batch; the loss of an example is the sum over its own.
    """
    model.eval()
    device = next(model.parameters()).device
    totals = {one.path: torch.zeros(one.n, dtype=torch.float64, device=device) for one in units}
    seen = 0
    for given in batches:
        batch = given.to(device)
        rows = next(iter(batch.inputs.values())).shape[0]
        dtype = next(model.parameters()).dtype
        gates = {
            one.path: torch.ones(rows, one.n, dtype=dtype, device=device, requires_grad=True)
            for one in units
        }
        with torch.enable_grad(), gated(units, gates):
            total = loss(model(**batch.inputs), batch.targets)  # pyright: ignore[reportArgumentType]
            found = torch.autograd.grad(total, list(gates.values()))
        for path, gradient in zip(gates, found, strict=True):
            totals[path] += gradient.abs().sum(0)
        seen += rows
    return {path: total / max(seen, 1) for path, total in totals.items()}
