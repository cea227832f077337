"""Choosing the parts to keep: heads and rows by their effect on the loss, layers by number."""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
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
        for sublayer in units:
            if sublayer.path in gates:
                gate = gates[sublayer.path].repeat_interleave(sublayer.width, -1)[:, None]
                hooks.enter_context(_scale_input(sublayer.projection, gate))
        yield


def _scale_input(
    projection: nn.Module, gate: Float[Tensor, "#batch 1 features"]
) -> RemovableHandle:
    def scale(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        rows = inputs[0].shape[0] // gate.shape[0] if len(gate) > 1 else 1
        return (inputs[0] * gate.repeat_interleave(rows, 0),)  # independent variables are rows

    return projection.register_forward_pre_hook(scale)


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
    first = next(model.parameters())
    device, dtype = first.device, first.dtype
    totals = {
        sublayer.path: torch.zeros(sublayer.n, dtype=torch.float64, device=device)
        for sublayer in units
    }
    n_examples = 0
    for batch in (batch.to(device) for batch in batches):
        rows = next(iter(batch.inputs.values())).shape[0]
        gates = {
            path: torch.ones(rows, len(total), dtype=dtype, device=device, requires_grad=True)
            for path, total in totals.items()
        }
        with torch.enable_grad(), gated(units, gates):
            total = loss(model(**batch.inputs), batch.targets)  # pyright: ignore[reportArgumentType]
            gradients = torch.autograd.grad(total, list(gates.values()))
        for path, gradient in zip(gates, gradients, strict=True):
            totals[path] += gradient.abs().sum(0)
        n_examples += rows
    return {path: total / max(n_examples, 1) for path, total in totals.items()}


Kept = Mapping[str, tuple[int, ...]]
"""The numbers of the units to keep, by the path of their sublayer, or of layers, by stack."""


def kept_units(units: Sequence[Units], scores: Importance, share: float, option: str) -> Kept:
    """The most important units of every sublayer, after removing this `share`.

    Each sublayer is ranked separately and keeps the same number of units; sublayers that share one
    table of position biases are ranked together, the importances of each layer normalised by their
    Euclidean length (Michel et al. 2019, §2.3). Raises `InputError` as `n_kept` does.
    """
    selected: dict[str, tuple[int, ...]] = {}
    for sublayer in units:
        table = sublayer.table
        together = [sublayer] if table is None else [u for u in units if u.table is table]
        total = torch.stack([F.normalize(scores[u.path], dim=0) for u in together]).sum(0)
        order = total.argsort(descending=True, stable=True).tolist()
        n = n_kept(sublayer.n, share, option, sublayer.path)
        selected[sublayer.path] = tuple(sorted(order[:n]))
    return selected


def n_kept(n: int, share: float, option: str, path: str = "a layer") -> int:
    """The number of units to keep out of the `n` of the sublayer at this path.

    Raises `InputError` for a share that removes none or all.
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"`{option} = {share}`: give the share to remove, between 0 and 1")
    removed = round(n * share)
    if removed in (0, n):
        nearest = 1 / n if removed == 0 else (n - 1) / n
        what = "no group or row" if removed == 0 else "every group or row"
        more = "there is only one" if n == 1 else f"the nearest share is {nearest:.3g}"
        raise InputError(f"`{option} = {share:g}` removes {what} of {n} in {path}: {more}")
    return n - removed


def kept_layers(layers: Sequence[str], depths: Mapping[str, int]) -> Kept:
    """The layers of each stack to keep, counted from 0: `every:2`, or `0 2 4`.

    `every:k` keeps layers 0, k, 2k, … (Fan et al. 2020, §3.2). Raises `InputError` for a layer that
    a stack does not have, for numbers that do not rise, and for layers of which none is removed.
    """
    written = f"`layers = {' '.join(layers)}`"
    selected = {name: _of_stack(layers, depth, written) for name, depth in depths.items()}
    if all(len(numbers) == depths[name] for name, numbers in selected.items()):
        why = "the smallest step is every:2" if max(depths.values()) > 1 else "there is only one"
        raise InputError(f"{written} keeps every layer: {why}")
    return selected


def _of_stack(layers: Sequence[str], depth: int, written: str) -> tuple[int, ...]:
    if len(layers) == 1 and (step := re.fullmatch(r"every:([1-9]\d*)", layers[0])):
        return tuple(range(0, depth, int(step[1])))
    if not all(layer.isdecimal() for layer in layers):
        raise InputError(f"{written}: write numbers of layers, as 0 2 4, or every:2")
    numbers = tuple(map(int, layers))
    if any(i >= depth for i in numbers):
        raise InputError(f"{written}: the model has layers 0 to {depth - 1}")
    if list(numbers) != sorted(set(numbers)):
        rising = " ".join(map(str, sorted(set(numbers))))
        raise InputError(f"{written}: layers keep their order: give {rising}")
    return numbers
