"""Operations on attention's output, between the weighted values and the output projection."""

from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import nn

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


OutputConfig = Annotated[GatedOutputConfig | OutputPart, Family("output", OutputPart)]
"""Any operation on attention's output, built-in or custom."""


def build_output(output: OutputConfig, d_model: int, heads: HeadShape, layer: int) -> nn.Module:
    """The operation of a layer. Raises `InputError` if a custom part builds none."""
    mixed, x = torch.zeros(2, heads.n_heads, 3, heads.d_head), torch.zeros(2, 3, d_model)
    made = output.build(d_model, heads, layer)
    return built_module(output, made, "output(heads, x)", (mixed, x), mixed.shape)
