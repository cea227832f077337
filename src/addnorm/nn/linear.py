"""The linear layer by the fastest matrix product, and low-rank changes of its matrix (LoRA, DoRA).

Most of a model's time is spent here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.kernels import linear as kernel
from addnorm.kernels.build import is_loaded
from addnorm.nn.choices import choices, is_intercepted, takes_operators, transformed
from addnorm.nn.functional import wide_dtype

SEVERAL_ROWS = 128
"""The number of rows from which a product may be the operator's, which copies both factors."""

MANY_NUMBERS = 2**19
"""The numbers of an input up to which several float32 layers are one product of the operator."""

MANY_ROWS = 256
"""The number of rows from which several layers with one input train in bfloat16 by one product."""


def onednn() -> Any:
    """oneDNN's product as an operator of torch; None if this torch does not have it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_pointwise = onednn()
multiplies_bfloat16 = _pointwise is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def multiplies_natively(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a device has products of this type; emulated ones take many times as long.

    Any device but a CPU is taken to have them, and each has those of float32 and float64.
    """
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return True
    return dtype is torch.bfloat16 and multiplies_bfloat16


class Linear(nn.Linear):
    """`x Wᵀ + b`: `nn.Linear` with a faster product (see `linear`)."""

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return linear(input, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*batch d_out"]:
    """`x Wᵀ + b` (`F.linear`), on a CPU by oneDNN where that is faster (`choices`).

    torch multiplies float32 by MKL, which is fastest on Intel's processors and uses half of the
    vector width on others: with AVX-512 on an AMD EPYC, oneDNN, which torch includes too, is twice
    as fast forward and backward (`benchmarks/results/products.json`). In bfloat16 torch copies
    the bias to every row first; oneDNN can add it to sums in registers. The results differ
    only by rounding. A single row is left to `F.linear`: no weight is used twice there. From
    `SEVERAL_ROWS` on, an operator of `kernels` may be chosen instead of both.
    """
    if _is_for_operator(x, [weight], [] if bias is None else [bias]):
        return _by_operator(x, [weight], [] if bias is None else [bias])
    if _fuses_bias(x, weight, bias) and bias is not None:
        if torch.compiler.is_compiling():
            y = F.linear(x, weight)
            return y + bias.to(y.dtype)  # a part of the loop that follows
        factors = [t.bfloat16() for t in (_rows(x), weight, bias)]
        return _BiasedProduct.apply(*factors).view(*x.shape[:-1], -1)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    if _is_for_onednn(x, weight, bias):
        return _Product.apply(_rows(x), weight, bias).view(*x.shape[:-1], -1)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return F.linear(x, weight, bias)


def linears(
    x: Float[Tensor, "*batch d_in"], layers: Sequence[nn.Module]
) -> tuple[Float[Tensor, "*batch _d_out"], ...]:
    """`x Wᵀ + b` for each of several layers, as one product where that is faster.

    `x` is then read or cast once, and its gradient is one product instead of a sum of several.
    Layers that are not plain ones, such as adapted or quantised ones and those with hooks, are
    called one after another.
    """
    plain = [layer for layer in layers if _is_plain(layer)]
    biases = [layer.bias for layer in plain if layer.bias is not None]  # pyright: ignore[reportUnnecessaryComparison]
    weights = [layer.weight for layer in plain]
    together = len(plain) == len(layers) and len(biases) in (0, len(plain))
    if together and _is_small(x) and _is_for_operator(x, weights, biases):
        y = _by_operator(x, weights, biases)
    elif together and _multiplies_together(x):
        y = linear(x, torch.cat(tuple(weights)), torch.cat(tuple(biases)) if biases else None)
    else:
        return tuple(layer(x) for layer in layers)
    return y.split([layer.out_features for layer in plain], dim=-1)


def _is_small(x: Tensor) -> bool:
    """Whether calls count more than memory: parts of one result are all in memory until the last.

    In bfloat16 one product wins in any size. A compiler gets one graph for all sizes.
    """
    always = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return always or x.numel() <= MANY_NUMBERS


def _multiplies_together(x: Tensor) -> bool:
    """Whether these layers train in bfloat16, where one large product beats several."""
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and x.device.type == "cpu"
        and x.numel() >= MANY_ROWS * x.shape[-1]
        and not torch.compiler.is_exporting()
    )


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer is a plain linear map: a whole trainable matrix without hooks."""
    return (
        type(layer) is Linear
        and type(layer.weight) is nn.Parameter
        and layer.weight.requires_grad
        and not is_intercepted(layer)
    )


def _rows(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "rows d"]:
    return x.reshape(-1, x.shape[-1])


def _fuses_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether to fuse a bias into a bfloat16 product, which torch would add in a second pass."""
    if bias is None or not multiplies_bfloat16:
        return False
    dtypes = {x.dtype, weight.dtype, bias.dtype}
    if torch.is_autocast_enabled("cpu") and dtypes <= {torch.float32, torch.bfloat16}:
        dtypes = {torch.get_autocast_dtype("cpu")}
    return (
        dtypes == {torch.bfloat16}
        and x.device.type == "cpu"
        and x.numel() > x.shape[-1]
        and weight.numel() > 0
        and _is_dense(weight)
        and not torch.compiler.is_exporting()
        and bias.shape == weight.shape[:1]
        and (torch.compiler.is_compiling() or (not transformed() and choices().bias == "fused"))
    )


def _is_for_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        x.dtype is torch.float32
        and weight.dtype is torch.float32
        and x.device.type == "cpu"
        and _is_dense(weight)
        and x.numel() > x.shape[-1]
        and weight.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and (bias is None or bias.shape == weight.shape[:1])
        and not torch.compiler.is_compiling()
        and not transformed()
        and _pointwise is not None
        and choices().product == "onednn"
    )


def _is_for_operator(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> bool:
    """Whether the operator multiplies by float32 weights, as they are or under autocast."""
    if torch.compiler.is_exporting() or type(x) is not Tensor or not x.is_cpu or x.is_nested:
        return False  # before sizes are compared, which a graph for any size must not be
    if x.numel() < SEVERAL_ROWS * x.shape[-1] or not takes_operators(x, *weights, *biases):
        return False
    narrow = torch.is_autocast_enabled("cpu")
    inputs = (torch.float32, torch.bfloat16) if narrow else (torch.float32,)
    return (
        (not narrow or torch.get_autocast_dtype("cpu") is torch.bfloat16)
        and x.dtype in inputs
        and is_loaded(kernel.OPERATOR)
        and all(w.shape[1:] == x.shape[-1:] for w in weights)  # torch names sizes that do not fit
        and all(w.dtype is torch.float32 and w.is_contiguous() and w.numel() for w in weights)
        and all(
            b.dtype is torch.float32 and b.is_contiguous() and b.shape == w.shape[:1]
            for w, b in zip(weights, biases, strict=False)
        )
        and (choices().bfloat16_product if narrow else choices().product) == "operator"
    )


def _by_operator(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    narrow = torch.is_autocast_enabled("cpu")
    rows = _rows(x).contiguous()
    rows = rows.bfloat16() if narrow else rows  # which takes half as much memory until the gradient
    y = kernel.linear(rows, weights, biases, narrow=narrow)
    return y.view(*x.shape[:-1], -1)


def _is_dense(matrix: Tensor) -> bool:
    """Whether the rows or the columns are contiguous; other layouts are slow."""
    return matrix.is_contiguous() or matrix.t().is_contiguous()


class _Product(torch.autograd.Function):
    """`A Bᵀ + b`, with gradients by the same kernel."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(a, b)
        return _by_onednn(a, b, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        dy = grads[0]
        needs_a, needs_b, needs_bias = ctx.needs_input_grad
        return (
            _product(dy, b.t()) if needs_a else None,
            _outer(dy, a) if needs_b else None,
            dy.sum(0) if needs_bias else None,
        )


def _by_onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    a, b = (t if _is_dense(t) else t.contiguous() for t in (a, b))
    return _pointwise(a, b, None if bias is None else bias.contiguous(), "none", [], "")


def _product(a: Float[Tensor, "n k"], b: Float[Tensor, "m k"]) -> Float[Tensor, "n m"]:
    if torch.is_grad_enabled():  # it will be differentiated once more
        return _Product.apply(a, b, None)  # pyright: ignore[reportReturnType]
    return _by_onednn(a, b, None)


def _outer(dy: Float[Tensor, "n m"], x: Float[Tensor, "n k"]) -> Float[Tensor, "m k"]:
    """`dyᵀ x`. The kernel copies a transposed first factor, so make that the smaller one."""
    if dy.shape[1] > x.shape[1]:
        return _product(x.t(), dy.t()).t()
    return _product(dy.t(), x.t())


class _BiasedProduct(torch.autograd.Function):
    """`A Bᵀ + b` in bfloat16, with gradients by torch's products, which have no bias to add."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _pointwise(a, b, bias.contiguous(), "none", [], "")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        dy = grads[0]
        needs_a, needs_b, needs_bias = ctx.needs_input_grad
        return (
            dy @ b if needs_a else None,
            dy.t() @ a if needs_b else None,
            dy.sum(0) if needs_bias else None,
        )


@dataclass(frozen=True, eq=False)
class LowRank:
    """`W + s B A` (Hu et al. 2021, §4.1), or this matrix with a learned length of each row.

    With a `magnitude` m it is `m (W + s B A) / ‖W + s B A‖`, the norm that of each row (Liu et al.
    2024, eq. 5).
    """

    a: Float[Tensor, "rank d_in"]
    b: Float[Tensor, "d_out rank"]
    scale: float
    magnitude: Float[Tensor, " d_out"] | None = None

    def changed(self, weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """The matrix with this change, in the dtype of the matrix, computed in float32 or wider."""
        wide = wide_dtype(weight.dtype)
        matrix = weight.to(wide) + self.scale * (self.b.to(wide) @ self.a.to(wide))
        if self.magnitude is not None:
            matrix = self.magnitude.to(wide)[:, None] * (matrix / divisors(matrix)[:, None])
        return matrix.to(weight.dtype)


def divisors(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, " d_out"]:
    """The norm of each row, with zeros replaced so that a zero row stays zero after division."""
    return row_norms(weight).clamp_min(torch.finfo(weight.dtype).tiny)


def row_norms(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, " d_out"]:
    """The Euclidean norm of each row."""
    return weight.norm(dim=1)
