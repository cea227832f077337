"""int8 weight quantisation: each row of a matrix as integers up to ±127 with one scale.

`W ≈ s ⊙ Q` with `s_i = max_j |W_ij| / 127` and `Q = round(W / s)`: symmetric, per output channel
(Krishnamoorthi 2018, §3.1.2). Biases, norms and positions are not quantised.
"""

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.models import Model
from addnorm.models.ledger import Ledger
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.functional import soft_capped
from addnorm.nn.heads import TokenHead

LARGEST = 127

int8_matmul = torch.ops.aten._int_mm

MAPS = (MultiHead, FeedForward, GatedFeedForward)
"""The modules whose linear layers are quantised."""


def quantize_int8(model: Model) -> Model:
    """Quantise the matrices of `model` to int8, in place, for a quarter of the memory; return it.

    Quantised are the linear layers of attention and feed-forward, the token embedding and the head.
    The model can no longer be trained; other modules are unchanged. Raises `InputError`, without
    changing anything, if one of these modules is not exactly a built-in one.
    """
    _check_replaced(model)
    matrices: dict[int, Int8Matrix] = {}  # tied weights share a matrix

    def matrix(weight: Tensor) -> Int8Matrix:
        return matrices.setdefault(id(weight), Int8Matrix(weight))

    for module in list(model.modules()):
        for name, part in module.named_children():
            if isinstance(module, MAPS) and isinstance(part, nn.Linear):
                setattr(module, name, Int8Linear(matrix(part.weight), part.bias))
            if isinstance(module, Embedding) and part is module.tokens:
                setattr(module, name, Int8Embedding(matrix(module.tokens.weight)))
            if isinstance(part, TokenHead):
                setattr(module, name, Int8TokenHead(matrix(part.weight), part))
    return model.requires_grad_(False)


def _check_replaced(model: Model) -> None:
    """Check that every module to be replaced is fully supported."""
    ledger = Ledger(model, "int8")
    for module in model.modules():
        for part in module.children():
            if isinstance(module, MAPS) and isinstance(part, nn.Linear):
                ledger.linear(part)
            elif isinstance(module, Embedding) and part is module.tokens:
                ledger.table(part)
            elif isinstance(part, TokenHead):
                _claim_head(ledger, part)
            else:
                continue
            ledger.close(part)


def _claim_head(ledger: Ledger, head: TokenHead) -> None:
    ledger.module(head, TokenHead)
    for name in ("weight", "bias", "scale", "softcap"):
        ledger.take(head, name)
    if head.transform is not None:
        ledger.leave_all(head.transform, because="the new head has it as it is")


def rounded(
    weight: Float[Tensor, "d_out d_in"],
) -> tuple[Int8[Tensor, "d_out d_in"], Float[Tensor, " d_out"]]:
    """Quantise a matrix to `Q` and `s`; the scale of a zero row is one."""
    wide = weight.detach().float()
    scale = wide.abs().amax(1) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    return (wide / scale[:, None]).round().to(torch.int8).contiguous(), scale


class Int8Matrix(nn.Module):
    """A quantised matrix `s ⊙ Q`, for products and row look-ups.

    In a graph for a single row, `x` keeps its dtype; otherwise each row of `x` is quantised to int8
    with its own scale, and the integer product is exact.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, weight: Float[Tensor, "d_out d_in"]) -> None:
        super().__init__()
        values, scale = rounded(weight)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x (s ⊙ Q)ᵀ`."""
        if torch.compiler.is_exporting() and x.numel() == x.shape[-1]:
            return F.linear(x, self.values.to(x.dtype)) * self.scale
        return int8_product(x.flatten(0, -2), self.values, self.scale).view(*x.shape[:-1], -1)

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up the rows `s_i Q_i`."""
        return self.values[places] * self.scale[places][..., None]


def int8_product(
    x: Float[Tensor, "rows d_in"],
    values: Int8[Tensor, "d_out d_in"],
    scale: Float[Tensor, " d_out"],
) -> Float[Tensor, "rows d_out"]:
    """`x (s ⊙ Q)ᵀ`, with each row of `x` quantised to int8 with its own scale."""
    whole, by = rounded(x)
    return int8_matmul(whole, values.t()) * (by[:, None] * scale)


class Int8Linear(nn.Module):
    """`x (s ⊙ Q)ᵀ + b`: a linear layer with an int8 weight."""

    def __init__(self, matrix: Int8Matrix, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = bias

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        y = self.matrix.times(x)
        return y if self.bias is None else y + self.bias


class Int8Embedding(nn.Module):
    """An int8 embedding table: `s_t Q_t` for token `t`."""

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def num_embeddings(self) -> int:
        return self.matrix.values.shape[0]

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        return self.matrix.rows(tokens)


class Int8TokenHead(nn.Module):
    """`TokenHead` with an int8 weight."""

    def __init__(self, matrix: Int8Matrix, head: TokenHead) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = head.bias
        self.transform = head.transform
        self.scale = head.scale
        self.softcap = head.softcap

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], ctx: Context
    ) -> Float[Tensor, "batch seq vocab"]:
        x = x if self.transform is None else self.transform(x)
        y = self.matrix.times(x) * self.scale
        return soft_capped(y if self.bias is None else y + self.bias, self.softcap)
