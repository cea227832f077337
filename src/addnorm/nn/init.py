"""Weight initialisation: a table of schemes, with an initialiser for each role of a weight."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from addnorm.nn.blocks import Stack
from addnorm.nn.deferred_init import truncated_normal_
from addnorm.nn.heads import TokenHead
from addnorm.nn.no_sublayer import NoPlacement
from addnorm.nn.residuals import DeepNorm

Fill = Callable[[Tensor, int], object]
"""Initialises a weight in place, given the number of sublayers that write to the residual stream.
"""


@dataclass(frozen=True)
class Scheme:
    """The initialisers of each role. Biases start at zero, norm gains at one."""

    embedding: Fill
    matrix: Fill
    """Weights that read from the residual stream, and all other matrices."""
    output: Fill
    """Weights that write to the residual stream: `out_proj`, `down_proj`."""


def _normal(std: float) -> Fill:
    return lambda w, _: nn.init.normal_(w, std=std)


def _truncated(std: float) -> Fill:
    return lambda w, _: truncated_normal_(w, std, 2 * std)


def _uniform(bound: float) -> Fill:
    return lambda w, _: nn.init.uniform_(w, -bound, bound)


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
    # The default of `nn.Linear` (He et al. 2015 with a = √5).
    "kaiming": Scheme(embedding=_normal(1.0), matrix=_kaiming, output=_kaiming),
    # Kim 2014, §3.2: words between -0.25 and 0.25.
    "kim": Scheme(embedding=_uniform(0.25), matrix=_xavier, output=_xavier),
    # Every sublayer starts at zero (after Zhang et al. 2019, Fixup, and modded-nanogpt).
    "zero_output": Scheme(embedding=_by_width, matrix=_xavier, output=_zero),
}

InitName = Literal["xavier", "gpt2", "bert", "kaiming", "kim", "zero_output"]


def initialise(model: nn.Module, scheme: InitName) -> None:
    """Initialise every weight of `model` by its role, using torch's global generator.

    A module lists its linear maps that write to the residual stream in `output_weights`. A module
    outside torch that has `reset_parameters()` is initialised by that instead.
    """
    table = SCHEMES[scheme]
    outputs = _declared(model, "output_weights")
    stacks = {name: m for name, m in model.named_modules() if isinstance(m, Stack)}
    depth = {name: _count_sublayers(stack) for name, stack in stacks.items()}
    for name, module in model.named_modules():
        n_sublayers = next((n for stack, n in depth.items() if name.startswith(stack)), 1)
        if isinstance(module, nn.Embedding | TokenHead):
            table.embedding(module.weight.data, n_sublayers)
        elif isinstance(module, nn.Linear):
            fill = table.output if id(module) in outputs else table.matrix
            fill(module.weight.data, n_sublayers)
            if module.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
                nn.init.zeros_(module.bias.data)
    scaled: set[int] = set()
    for stack in stacks.values():
        for block in stack.blocks:
            _scale(block, scaled)
    _reset(model)


def _count_sublayers(stack: Stack) -> int:
    """The number of sublayers of the stack that write to the residual stream."""
    children = [child for block in stack.blocks for child in block.named_children()]
    return sum(
        name.endswith("_residual") and not isinstance(part, NoPlacement) for name, part in children
    )


def _reset(model: nn.Module) -> None:
    """Call `reset_parameters()` of the modules that initialise themselves."""
    for module in model.modules():
        torchs = type(module).__module__.startswith("torch.")
        if not torchs and not isinstance(module, nn.Linear) and isinstance(module, HasReset):
            module.reset_parameters()


@runtime_checkable
class HasReset(Protocol):
    """A module that initialises its own weights, as torch's modules do."""

    def reset_parameters(self) -> None:
        """Initialise the weights again."""
        ...


def _declared(model: nn.Module, attribute: str) -> set[int]:
    """The ids of the linear maps that modules list in this attribute."""
    return {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, attribute, ())
    }


def _scale(block: nn.Module, scaled: set[int]) -> None:
    """Multiply a DeepNorm block's value, output and feed-forward weights by its gain β.

    Modules list these weights in `deepnorm_weights` (Wang et al. 2022, fig. 2). Those in `scaled`,
    which an earlier block shares, are scaled already.
    """
    gain = next((r.gain for r in block.children() if isinstance(r, DeepNorm)), 1.0)
    listed = _declared(block, "deepnorm_weights")
    for module in block.modules():
        if gain == 1.0 or not isinstance(module, nn.Linear) or id(module) not in listed:
            continue
        if id(module.weight) not in scaled:
            module.weight.data.mul_(gain)
            scaled.add(id(module.weight))


DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_)


class _NothingDrawn(TorchFunctionMode):
    """Turn functions that fill tensors with random numbers into no-ops, and count on the CPU."""

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
        if func is torch.arange and str(kwargs.get("device") or "meta") == "meta":
            return func(*args, **{**kwargs, "device": "cpu"}).to("meta")
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Generator[None]:
    """Build models on the meta device: tensors without memory, left uninitialised.

    Filling a meta tensor with random numbers would import torch's compiler, which takes a second,
    and `torch.arange` on that device its symbolic shapes, which take a quarter of one.
    """
    with torch.device("meta"), _NothingDrawn():
        yield
