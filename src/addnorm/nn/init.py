"""Initialisation: every scheme as one row of a table, by the role that a weight plays."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from addnorm.nn.blocks import Stack
from addnorm.nn.heads import TokenHead
from addnorm.nn.residuals import Branch, DeepNorm, Residual

Fill = Callable[[Tensor, int], object]
"""Fills a weight in place; told how many sublayers write to the residual stream."""


@dataclass(frozen=True)
class Scheme:
    """How the weights of each role start. Biases start at zero, norm gains at one."""

    embedding: Fill
    matrix: Fill
    """Weights that read the residual stream, and everything else with two axes."""
    output: Fill
    """Weights that write to the residual stream: `out_proj`, `down_proj`."""


def _normal(std: float) -> Fill:
    return lambda w, _: nn.init.normal_(w, std=std)


def _truncated(std: float) -> Fill:
    return lambda w, _: nn.init.trunc_normal_(w, std=std, a=-2 * std, b=2 * std)


def _by_width(w: Tensor, _: int) -> object:
    return nn.init.normal_(w, std=w.shape[-1] ** -0.5)


def _xavier(w: Tensor, _: int) -> object:
    return nn.init.xavier_uniform_(w)


def _kaiming(w: Tensor, _: int) -> object:
    return nn.init.kaiming_uniform_(w, a=math.sqrt(5))


def _by_depth(w: Tensor, n_sublayers: int) -> object:
    return nn.init.normal_(w, std=0.02 / math.sqrt(n_sublayers))


def _zero(w: Tensor, _: int) -> object:
    return nn.init.zeros_(w)


SCHEMES: dict[str, Scheme] = {
    # Vaswani et al. 2017 as their code did it: Glorot & Bengio 2010 for matrices.
    "xavier": Scheme(embedding=_by_width, matrix=_xavier, output=_xavier),
    # Radford et al. 2019, §2.3: outputs shrink with the square root of the number of sublayers.
    "gpt2": Scheme(embedding=_normal(0.02), matrix=_normal(0.02), output=_by_depth),
    # Devlin et al. 2019: normal, cut off at two standard deviations.
    "bert": Scheme(embedding=_truncated(0.02), matrix=_truncated(0.02), output=_truncated(0.02)),
    # What torch's own Linear does (He et al. 2015 with a = √5).
    "kaiming": Scheme(embedding=_normal(1.0), matrix=_kaiming, output=_kaiming),
    # Every sublayer starts as the identity (after Zhang et al. 2019, Fixup, and modded-nanogpt).
    "zero_output": Scheme(embedding=_by_width, matrix=_xavier, output=_zero),
}

InitName = Literal["xavier", "gpt2", "bert", "kaiming", "zero_output"]

OUTPUTS = ("out_proj", "down_proj")
SCALED = (*OUTPUTS, "v_proj", "up_proj", "gate_proj")


def initialise(model: nn.Module, scheme: InitName) -> None:
    """Fill every weight of `model` by its role, drawing from torch's global generator."""
    table = SCHEMES[scheme]
    depth = {
        name: sum(isinstance(module, Residual | Branch) for module in stack.modules())
        for name, stack in model.named_modules()
        if isinstance(stack, Stack)
    }
    for name, module in model.named_modules():
        n_sublayers = next((n for stack, n in depth.items() if name.startswith(stack)), 1)
        if isinstance(module, nn.Embedding | TokenHead):
            table.embedding(module.weight.data, n_sublayers)
        elif isinstance(module, nn.Linear):
            fill = table.output if name.endswith(OUTPUTS) else table.matrix
            fill(module.weight.data, n_sublayers)
            for bias in (p for p in module.parameters(recurse=False) if p.ndim == 1):
                nn.init.zeros_(bias.data)
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for block in stack.blocks:
            _scale(block)


def _scale(block: nn.Module) -> None:
    """Multiply a DeepNorm block's value, output and feed-forward weights by its gain β."""
    gain = next((r.gain for r in block.children() if isinstance(r, DeepNorm)), 1.0)
    for name, module in block.named_modules():
        if gain != 1.0 and isinstance(module, nn.Linear) and name.endswith(SCALED):
            module.weight.data.mul_(gain)


DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_)


class _NothingDrawn(TorchFunctionMode):
    """Leaves tensors as they are where random numbers would fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Generator[None]:
    """Models are built as shapes alone: their tensors have no memory, and nothing fills them.

    To draw for a tensor without memory would have torch import its compiler, which takes a second.
    """
    with torch.device("meta"), _NothingDrawn():
        yield
