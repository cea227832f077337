"""Operations on attention's output, between the weighted values and the output projection."""

from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.built import built_module
from addnorm.nn.linear import Linear
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Heads, HeadShape, Hidden
from addnorm.parts import Family


@runtime_checkable
class OutputPart(Protocol):
    """A configuration of an operation on attention's output.

    The module it builds maps the output of every head, `[batch, heads, seq, d_head]`, and the
    hidden states that the queries were projected from, `[batch, seq, d_model]`, to the output of
    every head. It must act on each token independently.
    """

    def build(self, d_model: int, heads: HeadShape, layer: int) -> nn.Module: ...


class PlainOutput(nn.Module):
    """`heads`: the identity."""

    splits: ClassVar[Splits] = {}

    def forward(self, heads: Heads, x: Hidden) -> Heads:
        return heads


class GatedOutput(nn.Module):
    """`heads ⊙ σ(x W_g)`: attention whose output is gated (Qiu et al. 2025, §2.2).

    `x` is what the queries are projected from. `per = "feature"` has a gate for each feature of a
    head, `per = "head"` one for the whole head.
    """

    splits: ClassVar[Splits] = {"proj": Split(0)}

    def __init__(self, d_model: int, heads: HeadShape, per: Literal["feature", "head"]) -> None:
        super().__init__()
        width = heads.d_head if per == "feature" else 1
        self.n_heads = heads.n_heads
        self.proj = Linear(d_model, heads.n_heads * width, bias=False)

    def forward(self, heads: Heads, x: Hidden) -> Heads:
        gate = torch.sigmoid(self.proj(x))
        return heads * gate.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)


@config
class GatedOutputConfig:
    """A gate on attention's output, for each feature or for each head."""

    kind: Literal["gated"] = "gated"
    per: Literal["feature", "head"] = "feature"
    """Whether each feature of a head has a gate, or each head one."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One gate per feature, and one per head."""
        return {"gated": cls(), "gated_per_head": cls(per="head")}

    def build(self, d_model: int, heads: HeadShape, layer: int) -> GatedOutput:
        return GatedOutput(d_model, heads, self.per)


class DifferentialOutput(nn.Module):
    """`a - σ(x W_λ) b` of each pair of neighbouring heads: differential attention 2.

    Ye et al. 2026. Heads 2i and 2i+1 give the outputs `a` and `b` of pair i, which share their keys
    and values; λ is a number for each pair and token. Unlike in differential attention (Ye et al.
    2024), kernels compute plain attention, and neither a norm nor a λ by layer follows. The output
    projection reads half as many heads.
    """

    splits: ClassVar[Splits] = {"proj": Split(0)}
    heads_together = 2

    def __init__(self, d_model: int, heads: HeadShape) -> None:
        super().__init__()
        self.proj = Linear(d_model, heads.n_heads // 2, bias=False)

    def forward(self, heads: Heads, x: Hidden) -> Float[Tensor, "batch pairs seq d_head"]:
        strength = torch.sigmoid(self.proj(x)).transpose(1, 2).unsqueeze(-1)
        return heads[:, ::2] - strength * heads[:, 1::2]


@config
class DifferentialOutputConfig:
    """The difference of neighbouring heads that share keys; `n_heads` counts both of each pair."""

    kind: Literal["differential2"] = "differential2"

    def conflict(self, around: HeadShape) -> str | None:
        """Both heads of a pair must have the same keys."""
        if (around.n_heads // around.n_kv_heads) % 2:
            return (
                f"the heads of a pair share keys: n_heads = {around.n_heads} must be an even "
                f"multiple of n_kv_heads = {around.n_kv_heads}"
            )
        return None

    def build(self, d_model: int, heads: HeadShape, layer: int) -> DifferentialOutput:
        return DifferentialOutput(d_model, heads)


OutputConfig = Annotated[
    GatedOutputConfig | DifferentialOutputConfig | OutputPart, Family("output", OutputPart)
]
"""Any operation on attention's output, built-in or custom."""


def build_output(output: OutputConfig, d_model: int, heads: HeadShape, layer: int) -> nn.Module:
    """The operation of a layer. Raises `InputError` if a custom part builds none."""
    mixed, x = torch.zeros(2, heads.n_heads, 3, heads.d_head), torch.zeros(2, 3, d_model)
    made = output.build(d_model, heads, layer)
    return built_module(output, made, "output(heads, x)", (mixed, x), mixed.shape)
