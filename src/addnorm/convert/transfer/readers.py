"""Which weights read a norm's output, asked of the model, not listed.

In a copy of the model every norm says one fixed vector, of its own and the same for all tokens.
Whatever multiplies that vector by a weight reads the norm.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from addnorm.convert.transfer.verified import Inputs, every_output
from addnorm.models import Model, ModelConfig
from addnorm.nn.moe import MixtureOfExperts

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LINEAR = {F.linear, *(getattr(torch._VF, name) for name in RECURRENT)}  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
"""The functions that multiply each token's input by their first matrix and add a first bias."""


@dataclass(frozen=True)
class Reader:
    """A weight that reads a norm, the bias that is added to the product, and the input's factor.

    `bias` is None where nothing is added, and where a constant in the input is not one in the
    output, as in a convolution that pads with zeros.
    """

    weight: str
    bias: str | None
    factor: float = 1.0


@torch.no_grad()
def readers(model: Model, norms: Iterable[str], config: ModelConfig) -> dict[str, list[Reader]]:
    """The readers of each norm, by its name; none where the model cannot be run."""
    asked = copy.deepcopy(model).cpu().double().eval()
    for module in asked.modules():
        if isinstance(module, MixtureOfExperts):
            module.mix = module.dense  # every expert reads, whoever is chosen
    draw = torch.Generator().manual_seed(0)
    marks = {
        name: torch.randn(config.d_model, generator=draw, dtype=torch.float64) for name in norms
    }
    for name, mark in marks.items():
        _say(asked.get_submodule(name), mark)
    watch = _Watch(marks, {id(parameter): name for name, parameter in asked.named_parameters()})
    try:
        inputs = replace(Inputs.of(asked, asked, config), valid=None)
        read = inputs.read.double() if inputs.read.is_floating_point() else inputs.read
        with watch:
            for _ in every_output(asked, read, inputs):
                pass
    except (ValueError, RuntimeError):
        return {name: [] for name in marks}
    return {name: list(dict.fromkeys(found)) for name, found in watch.readers.items()}


def _say(norm: nn.Module, mark: Tensor) -> RemovableHandle:
    def said(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return mark.expand(output.shape)

    return norm.register_forward_hook(said)


class _Watch(TorchFunctionMode):
    """Notices every function that gets a mark together with a weight."""

    def __init__(self, marks: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
        super().__init__()
        self.marks, self.names = marks, names
        self.readers: dict[str, list[Reader]] = {name: [] for name in marks}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*_tensors(args), *_tensors((kwargs or {}).values())]
        weights = [tensor for tensor in given if id(tensor) in self.names]
        if given and any(tensor.ndim > 1 for tensor in weights):
            self._notice(func, given[0], weights)
        return func(*args, **(kwargs or {}))

    def _notice(self, func: Callable[..., Any], x: Tensor, weights: list[Tensor]) -> None:
        matrix = next(weight for weight in weights if weight.ndim > 1)
        bias = next((self.names[id(weight)] for weight in weights if weight.ndim == 1), None)
        for norm, mark in self.marks.items():
            factor = _factor(x, mark)
            if factor is not None and func in LINEAR:
                self.readers[norm].append(Reader(self.names[id(matrix)], bias, factor))
            elif factor is not None or (x.ndim > 2 and _factor(x.mT, mark, some=True) is not None):
                self.readers[norm].append(Reader(self.names[id(matrix)], None))


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    flat = (
        tensor
        for value in values
        for tensor in (value if isinstance(value, list | tuple) else [value])
    )
    return [tensor for tensor in flat if isinstance(tensor, Tensor)]


def _factor(x: Tensor, mark: Tensor, *, some: bool = False) -> float | None:
    """By how much a multiple of the mark (copies of it side by side) stands in every row of `x`."""
    if not x.is_floating_point() or x.ndim == 0 or not x.numel() or x.shape[-1] % len(mark):
        return None
    rows, copies = x.reshape(-1, x.shape[-1]).to(mark), mark.repeat(x.shape[-1] // len(mark))
    factors = rows @ copies / (copies @ copies)
    factor = factors[len(factors) // 2]
    near = (rows - factor * copies).abs().amax(1) <= 1e-9 * factor.abs()
    return float(factor) if factor != 0 and (near.any() if some else near.all()) else None
