"""Dropout with a faster mask generator on the CPU, and LayerDrop, which drops whole layers."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 2**16


class Dropout(nn.Module):
    """Zero with probability `p`, scale the rest by `1 / (1 - p)` (Srivastava et al. 2014).

    On a CPU one 64-bit random number decides four elements, with `p` (and so the scale) rounded to
    a multiple of 2⁻¹⁶; torch draws a number for each element, which took a third of a small model's
    training step (`benchmarks/results/parts.json`). On other devices this is torch's own dropout.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.p == 0.0:
            return x
        return x * keep_mask(x, self.p) if x.device.type == "cpu" else F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class LayerDrop(nn.Module):
    """`b f(x) + (1 - b) x`, `b ~ Bernoulli(1 - p)`: skip a layer in training (Fan et al. 2020, §3).

    One draw for each layer and forward pass, shared by the batch; nothing is scaled, and outside of
    training every layer runs. A skipped layer costs no time, except in a compiled graph.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(
        self, x: Float[Tensor, "*shape"], layer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*shape"]:
        if not self.training:
            return layer(x)
        if torch.compiler.is_compiling():
            return torch.where(torch.rand((), device=x.device) >= self.p, layer(x), x)
        return layer(x) if float(torch.rand(())) >= self.p else x

    def around(self, layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The layer, skipped at random in training."""
        return lambda x, *rest: self(x, lambda h: layer(h, *rest))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def keep_mask(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """A random mask: `1 / (1 - p)` where `x` is kept, 0 where dropped; uses torch's generator."""
    if torch.compiler.is_compiling():
        return torch.ops.addnorm.keep_mask(
            x.detach(), p, torch.randint(2**62, (1,), device=x.device)
        )
    return _mask(x, p, None)


def _mask_of_seed(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """The mask of a seed: a pure function, which a compiler may compute again or only once."""
    return _mask(x, p, torch.Generator().manual_seed(int(seed)))


_library = torch.library.Library("addnorm", "FRAGMENT")
_library.define("keep_mask(Tensor x, float p, Tensor seed) -> Tensor")
_library.impl("keep_mask", _mask_of_seed, "CPU")
_library.impl("keep_mask", lambda x, p, seed: x.new_empty(x.shape), "Meta")


def _mask(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    dropped = round(p * _LEVELS)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _LEVELS // 2
    return keep.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))
