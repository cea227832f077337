"""Linear recurrences with decay, by steps of one token and by chunks of many.

The state of a head is a matrix that maps queries to values: `S_t = α_t ⊙ S_{t-1} + k_t u_tᵀ`,
`o_t = S_tᵀ q_t`. The update `u` depends on the state in the delta rule and not in Mamba-2.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full, Mask
from addnorm.nn.recurrent import Compacted, StateCache, StateCaches
from addnorm.nn.short_convolution import Channels, ShortConvolution
from addnorm.nn.types import Hidden

RecurrentKeys = Float[Tensor, "batch heads *seq d_key"]
RecurrentValues = Float[Tensor, "batch heads *seq d_value"]
LogDecay = Float[Tensor, "batch heads *seq decays"]
Rate = Float[Tensor, "batch heads *seq 1"]
MatrixState = Float[Tensor, "batch heads d_key d_value"]
Begins = Bool[Tensor, "batch seq"]
Read = tuple[RecurrentValues, MatrixState]
"""The outputs and the last state."""


@dataclass(frozen=True, kw_only=True)
class RecurrenceInputs:
    """The inputs of a recurrence for each token and head.

    The decay is one of the head, or one of each feature of its keys.
    """

    q: RecurrentKeys
    k: RecurrentKeys
    v: RecurrentValues
    log_decay: LogDecay
    rate: Rate

    def map(self, change: Callable[[Tensor], Tensor]) -> "RecurrenceInputs":
        """These inputs with `change` applied to each."""
        changed: dict[str, Any] = {f.name: change(getattr(self, f.name)) for f in fields(self)}
        return replace(self, **changed)


def state_before(x: Hidden, rows: Compacted, memory: StateCache, n_heads: int) -> MatrixState:
    """The state of each row before these tokens, zero at the start of a text; in float32 at least.

    A `memory` holds a slot for each feature of the keys of each head.
    """
    state = at_least_float32(memory.state(x))
    return rows.before(state).unflatten(1, (n_heads, -1))


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context that keeps autocast from narrowing products on the device of `x`."""
    if not torch.amp.is_autocast_available(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False)


def draw_decays(log_speed: Float[Tensor, " heads"], step_bias: Float[Tensor, " steps"]) -> None:
    """Draw speeds between 1 and 16, and steps between 0.001 and 0.1 on a logarithmic scale.

    Speeds are stored as logarithms, steps as what `softplus` makes them of (Dao & Gu 2024, in their
    code).
    """
    with torch.no_grad():
        log_speed.uniform_(1.0, 16.0).log_()
        step_bias.uniform_(math.log(0.001), math.log(0.1)).exp_().expm1_().log_()


def recurrence_steps(
    x: RecurrenceInputs,
    state: MatrixState,
    begins: Begins | None,
    written: Callable[[RecurrenceInputs, MatrixState], RecurrentValues],
) -> Read:
    """The recurrence one token at a time; `written` gives `u` from a token and the decayed state.

    The state is new where a text `begins`. Returns the outputs and the last state.
    """
    outputs = list[Tensor]()
    for t in range(x.q.shape[2]):
        now = x.map(lambda each, t=t: each[:, :, t : t + 1])
        state = now.log_decay.mT.exp() * state
        if begins is not None:
            state = state.masked_fill(begins[:, t, None, None, None], 0.0)
        state = state + now.k.mT @ written(now, state)
        outputs.append(now.q @ state)
    return torch.cat(outputs, dim=2), state


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The inputs in chunks of some tokens, with the products of decays `γ` within each.

    Decays are taken as differences of logarithms, none of which is positive.
    """

    n: int
    """The number of tokens, before the last chunk was filled."""
    x: RecurrenceInputs
    to_here: Float[Tensor, "batch heads chunks size decays"]
    """`γ_i` from the beginning of the chunk to each token; zero if a text begins between."""
    to_end: Float[Tensor, "batch heads chunks size decays"]
    """`γ_C / γ_i` from each token to the end of the chunk."""
    between: Float[Tensor, "batch heads chunks size size decays"]
    """`γ_i / γ_j` from token `j` to `i`; zero for a later token or one of another text."""

    @classmethod
    def of(cls, x: RecurrenceInputs, size: int, begins: Begins | None) -> "Chunks":
        """Chunks of `size` tokens, the last one filled with decays of one and rates of zero."""
        n = x.q.shape[2]
        fill = -n % size
        x = x.map(lambda each: F.pad(each, (0, 0, 0, fill)).unflatten(2, (-1, size)))
        total = x.log_decay.cumsum(3)
        to_here, to_end = total.exp(), (total[..., -1:, :] - total).exp()
        apart = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
        if begins is not None:
            text = F.pad(begins, (0, fill)).unflatten(1, (-1, size)).cumsum(2)[:, None]
            apart = apart | (text[..., None] != text[..., None, :])
            to_here = to_here.masked_fill((text != 0)[..., None], 0.0)
            to_end = to_end.masked_fill((text != text[..., -1:])[..., None], 0.0)
        between = total[..., None, :] - total[..., None, :, :]
        between = between.masked_fill(apart[..., None], -math.inf).exp()
        return cls(n=n, x=x, to_here=to_here, to_end=to_end, between=between)

    def products(
        self, a: Float[Tensor, "*chunks size d_key"], b: Float[Tensor, "*chunks size d_key"]
    ) -> Float[Tensor, "*chunks size size"]:
        """`a_i · (γ_i/γ_j b_j)` of every pair of a chunk."""
        if self.between.shape[-1] == 1:
            return (a @ b.mT) * self.between[..., 0]
        return torch.einsum("...id,...jd,...ijd->...ij", a, b, self.between)

    def read(
        self,
        values: Float[Tensor, "batch heads chunks size d_value"],
        state: MatrixState,
        expected: Float[Tensor, "batch heads chunks size d_key"] | None = None,
    ) -> Read:
        """The outputs and the last state, with `u = values − expected S₀` in each chunk.

        `o_i = S₀ᵀ γ_i q_i + Σ_{j≤i} (q_i · γ_i/γ_j k_j) u_j`.
        """
        reads = self.products(self.x.q, self.x.k)
        q, k = self.to_here * self.x.q, self.to_end * self.x.k
        outputs = list[Tensor]()
        for c in range(q.shape[2]):
            u = values[:, :, c]
            if expected is not None:
                u = u - expected[:, :, c] @ state
            outputs.append(q[:, :, c] @ state + reads[:, :, c] @ u)
            state = self.to_here[:, :, c, -1:].mT * state + k[:, :, c].mT @ u
        return torch.cat(outputs, dim=2)[:, :, : self.n], state


class LinearRecurrence(nn.Module, ABC):
    """A mixer `gated(o) W_o`, where queries read `o` from what keys and values have written.

    Queries, keys and values are maps of `x`, then a `ShortConvolution` and SiLU. It reads from left
    to right, in an encoder too. Every text begins at zero, whatever else is in its row; padding
    changes no state, and the output there is zero. The recurrence is computed in float32 at least.
    """

    pattern: Mask = Full()
    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    steps: ClassVar[Callable[[RecurrenceInputs, MatrixState, Begins | None], Read]]
    """The rule, one token at a time."""
    chunks: ClassVar[Callable[[RecurrenceInputs, MatrixState, int, Begins | None], Read]]
    """The same rule by chunks of so many tokens."""

    n_heads: int
    chunk: int
    short: ShortConvolution
    out_proj: Linear

    @property
    @abstractmethod
    def state_size(self) -> tuple[int, int]:
        """The widths of keys and of values, which the state of a head has."""

    @abstractmethod
    def projected(self, tokens: Hidden) -> Channels:
        """Queries, keys and values of tokens, before the convolution."""

    @abstractmethod
    def inputs(self, mixed: Channels, tokens: Hidden, rows: Compacted) -> RecurrenceInputs:
        """What the recurrence reads, by which padding changes no state; `mixed` are convolved."""

    @abstractmethod
    def gated(self, heads: RecurrentValues, x: RecurrenceInputs, tokens: Hidden) -> Channels:
        """What the heads say, normed and gated."""

    def forward(self, x: Hidden, ctx: Context, cache: StateCaches | None = None) -> Hidden:
        if not x.numel():
            return x
        rows = Compacted.of(ctx)
        tokens = rows.gather(x)
        short, memory = (None, None) if cache is None else cache.stages
        mixed = F.silu(self.short(self.projected(tokens), rows, several=ctx.several, cache=short))
        state = state_before(tokens, rows, memory or self.new_cache().stages[1], self.n_heads)
        inputs, begins = self.inputs(mixed, tokens, rows), rows.begins if ctx.several else None
        with without_autocast(x):
            if (n := x.shape[1]) == 1:
                heads, state = type(self).steps(inputs, state, begins)
            else:
                heads, state = type(self).chunks(inputs, state, min(n, self.chunk), begins)
        if memory is not None:
            memory.keep(state.flatten(1, 2))
        return rows.scatter(self.out_proj(self.gated(heads, inputs, tokens).to(x.dtype)))

    def split(self, x: Channels, n: int) -> Float[Tensor, "batch heads seq d_head"]:
        """Split the last axis into `n` heads."""
        return x.unflatten(-1, (n, -1)).transpose(1, 2)

    def new_cache(self) -> StateCaches:
        """An empty cache for the last inputs of the convolution, and for the state of each head."""
        d_key, d_value = self.state_size
        return StateCaches(self.short.new_cache(), StateCache(self.n_heads * d_key, d_value))
