"""CoreConfig: all attention cores, and the interface of a custom core."""

from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import nn

from addnorm.nn.attention.core import EagerCoreConfig, SDPACoreConfig
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.built import built_module
from addnorm.nn.masks import Full
from addnorm.nn.types import HeadShape
from addnorm.parts import Family


@runtime_checkable
class CorePart(Protocol):
    """A configuration of an attention core.

    The module it builds is called as `core(q, k, v, mask, bias)` (see `core`): `q` is `[batch,
    heads, q_seq, d_head]`, `k` and `v` are `[batch, kv_heads, kv_seq, d_head]`, `mask` is an
    `Evaluated`, and `bias` a `Bias` or None; it returns the shape of `q`. It keeps the score as its
    attribute `score`. A method `weights(q, k, mask, bias)` returns the attention weights, `[batch,
    heads, q_seq, kv_seq]`, for inspection. `layer` counts from 0.
    """

    def build(
        self, heads: HeadShape, score: nn.Module, dropout: float, layer: int
    ) -> nn.Module: ...


CoreConfig = Annotated[
    SDPACoreConfig | FlexCoreConfig | EagerCoreConfig | DifferentialCoreConfig | CorePart,
    Family("core", CorePart),
]
"""Any attention core, built-in or custom."""


def build_core(
    core: CoreConfig, heads: HeadShape, score: nn.Module, dropout: float, layer: int
) -> nn.Module:
    """The core of a layer. Raises `InputError` if a custom part builds none."""
    q = torch.zeros(2, heads.n_heads, 3, heads.d_head)
    k = torch.zeros(2, heads.n_kv_heads, 3, heads.d_head)
    made = core.build(heads, score, dropout, layer)
    return built_module(core, made, "core(q, k, v, mask, bias)", (q, k, k, Full(), None), q.shape)
