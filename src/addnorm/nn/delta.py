"""The gated delta rule: a memory of keys and values that decays and is corrected at every token."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.linear_recurrence import (
    Begins,
    Chunks,
    MatrixState,
    RecurrenceInputs,
    RecurrentValues,
    draw_decays,
    recurrence_steps,
    state_before,
    without_autocast,
)
from addnorm.nn.masks import Full, Mask
from addnorm.nn.norms import BatchNormConfig, NormConfig, RMSNormConfig, build_norm
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import Compacted, StateCache, StateCaches
from addnorm.nn.short_convolution import Channels, ShortConvolution
from addnorm.nn.types import Hidden, divisors

EPS = 1e-6
"""The ε of the length of queries and keys."""

Gate = Literal["silu", "sigmoid"]


def unit(x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
    """`x / √(Σ x² + ε)`: vectors of unit length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def delta_steps(
    x: RecurrenceInputs, state: MatrixState, begins: Begins | None = None
) -> tuple[RecurrentValues, MatrixState]:
    """One token at a time: `S ← α ⊙ S`, `S ← S + k (β (v − Sᵀk))ᵀ`, `o = Sᵀq`.

    Yang et al. 2024, eq. 10, with `Sᵀ` for their `S`. The state is new where a text `begins`.
    Returns the outputs and the last state.
    """
    return recurrence_steps(x, state, begins, lambda now, s: now.rate * (now.v - now.k @ s))


def delta_chunks(
    x: RecurrenceInputs, state: MatrixState, size: int, begins: Begins | None = None
) -> tuple[RecurrentValues, MatrixState]:
    """`delta_steps` by chunks of `size` tokens, within which matrices take the place of steps.

    With `γ_i` the product of the decays of a chunk so far, what a chunk writes solves the
    triangular system `u_i + β_i Σ_{j<i} (k_i · γ_i/γ_j k_j) u_j = β_i (v_i − S₀ᵀ γ_i k_i)` (Yang et
    al. 2024, §3.3, the extended WY representation).
    """
    chunks = Chunks.of(x, size, begins)
    x = chunks.x
    system = x.rate * chunks.products(x.k, x.k)
    right = torch.cat([x.rate * x.v, x.rate * chunks.to_here * x.k], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, expected = solved.split([x.v.shape[-1], x.k.shape[-1]], dim=-1)
    return chunks.read(values, state, expected)


class GatedDelta(nn.Module):
    """`(norm(o) ⊙ silu(x W_z)) W_o`, `o` read by queries from a memory that keys and values write.

    Yang et al. 2024 (2412.06464), §3: `S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ`,
    `o_t = S_tᵀ q_t`. Queries, keys and values are maps of `x`, then a `ShortConvolution` and SiLU;
    queries and keys have unit length, and queries the factor `1/√d_key`. `β = σ(x W_β)`,
    `ln α = −exp(A) softplus(x W_α + b)`, of each head or, as in Kimi Linear (Kimi Team 2025,
    2510.26692, §3), of each feature of its keys. Consecutive heads share queries and keys where
    there are fewer of those. The norm is over each head.

    It reads from left to right, in an encoder too. Every text begins at zero, whatever else is in
    its row; padding changes no state, and the output there is zero. The rule is computed in float32
    at least.
    """

    pattern: Mask = Full()
    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    def __init__(self, d_model: int, heads: "DeltaHeads", settings: "GatedDeltaConfig") -> None:
        super().__init__()
        self.n_heads, self.n_key_heads = heads.n_heads, heads.n_key_heads
        self.d_key, self.d_value = heads.d_key, heads.d_value
        self.gate, self.chunk = settings.gate, settings.chunk
        self.key_width, width = self.n_key_heads * self.d_key, self.n_heads * self.d_value
        n_decays = self.n_heads * (self.d_key if settings.decay == "channel" else 1)
        self.q_proj = Linear(d_model, self.key_width, bias=False)
        self.k_proj = Linear(d_model, self.key_width, bias=False)
        self.v_proj = Linear(d_model, width, bias=False)
        self.gate_proj = Linear(d_model, width, bias=False)
        self.rate_proj = Linear(d_model, self.n_heads, bias=False)
        self.decay_proj = Linear(d_model, n_decays, bias=False)
        self.short = ShortConvolution(2 * self.key_width + width, settings.kernel_size, bias=False)
        self.log_speed = nn.Parameter(torch.empty(self.n_heads))
        self.decay_bias = nn.Parameter(torch.empty(n_decays))
        self.norm = build_norm(settings.norm, self.d_value)
        self.out_proj = Linear(width, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw `A` and `b` (`draw_decays`)."""
        draw_decays(self.log_speed, self.decay_bias)

    def forward(self, x: Hidden, ctx: Context, cache: StateCaches | None = None) -> Hidden:
        if not x.numel():
            return x
        rows = Compacted.of(ctx)
        tokens = rows.gather(x)
        short, memory = (None, None) if cache is None else cache.stages
        qkv = torch.cat([proj(tokens) for proj in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        qkv = F.silu(self.short(qkv, rows, several=ctx.several, cache=short))
        state = state_before(tokens, rows, memory or self.new_cache().stages[1], self.n_heads)
        inputs = self._inputs(qkv, tokens, rows)
        with without_autocast(x):
            heads, state = self._read(inputs, state, rows.begins if ctx.several else None)
        if memory is not None:
            memory.keep(state.flatten(1, 2))
        act = F.silu if self.gate == "silu" else torch.sigmoid
        gates = act(at_least_float32(self.gate_proj(tokens)))
        y = self.norm(heads.transpose(1, 2)).flatten(-2) * gates
        return rows.scatter(self.out_proj(y.to(x.dtype)))

    def _inputs(self, qkv: Channels, tokens: Hidden, rows: Compacted) -> RecurrenceInputs:
        """The inputs of the rule, with decay one and rate zero at padding."""
        wide = at_least_float32(qkv)
        q, k, v = wide.tensor_split((self.key_width, 2 * self.key_width), dim=-1)
        q, k = (self._split(y, self.n_key_heads) for y in (q, k))
        share = self.n_heads // self.n_key_heads
        q, k = (unit(y).repeat_interleave(share, dim=1) for y in (q, k))
        rate = at_least_float32(self.rate_proj(tokens)).sigmoid()
        steps = F.softplus(at_least_float32(self.decay_proj(tokens)) + self.decay_bias)
        log_decay = self._split(steps, self.n_heads)
        log_decay = -at_least_float32(self.log_speed).exp()[:, None, None] * log_decay
        rate = self._split(rate, self.n_heads)
        if rows.order is not None:
            padding = ~rows.real[:, None, :, None]
            rate, log_decay = (y.masked_fill(padding, 0.0) for y in (rate, log_decay))
        return RecurrenceInputs(
            q=q * self.d_key**-0.5,
            k=k,
            v=self._split(v, self.n_heads),
            log_decay=log_decay,
            rate=rate,
        )

    def _read(
        self, x: RecurrenceInputs, state: MatrixState, begins: Begins | None
    ) -> tuple[RecurrentValues, MatrixState]:
        """The outputs and the last state: by steps for one token, by chunks for more."""
        if (n := x.q.shape[2]) == 1:
            return delta_steps(x, state, begins)
        return delta_chunks(x, state, min(n, self.chunk), begins)

    def _split(self, x: Channels, n: int) -> Float[Tensor, "batch heads seq d_head"]:
        """Split the last axis into `n` heads."""
        return x.unflatten(-1, (n, -1)).transpose(1, 2)

    def new_cache(self) -> StateCaches:
        """An empty cache for the last inputs of the convolution, and for `S` of every head."""
        return StateCaches(
            self.short.new_cache(), StateCache(self.n_heads * self.d_key, self.d_value)
        )


@dataclass(frozen=True, kw_only=True)
class DeltaHeads:
    """The numbers and widths of the heads of the gated delta rule."""

    n_heads: int
    n_key_heads: int
    d_key: int
    d_value: int


@config
class GatedDeltaConfig:
    """The gated delta rule: a linear recurrence with a state of `d_key × d_value` in each head.

    Positions are left to the recurrence.
    """

    kind: Literal["gated_delta"] = "gated_delta"
    n_heads: PositiveInt = 8
    """Heads of the values and of the state."""
    n_key_heads: PositiveInt | None = None
    """Heads of queries and keys, each of which serves consecutive heads of values; by default as
    many.
    """
    d_key: PositiveInt | None = None
    """The width of a head's queries and keys; by default d_model / n_heads."""
    d_value: PositiveInt | None = None
    """The width of a head's values; by default d_model / n_heads."""
    kernel_size: PositiveInt = 4
    """Tokens that the short convolution of queries, keys and values spans."""
    decay: Literal["head", "channel"] = "head"
    """Whether each head has a decay, or each feature of its keys (Kimi Linear), for which training
    takes `chunk · d_key` numbers a token and head.
    """
    gate: Gate = "silu"
    """The nonlinearity of the gate on the output."""
    norm: NormConfig = RMSNormConfig()
    """The norm of each head's output, before the gate."""
    chunk: PositiveInt = 64
    """Tokens that are computed at once in training and in reading a prompt; the result is the same
    for all.
    """

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Shared keys, and a decay of each feature."""
        return {
            "gated_delta": cls(n_heads=4, n_key_heads=2, d_key=3, d_value=5, chunk=3),
            "gated_delta_of_channels": cls(
                n_heads=2, d_key=4, kernel_size=2, decay="channel", gate="sigmoid"
            ),
        }

    def __post_init__(self) -> None:
        n_keys = self.n_key_heads or self.n_heads
        if self.n_heads % n_keys:
            raise ValueError(
                f"n_key_heads = {n_keys} cannot serve n_heads = {self.n_heads} evenly: it must be "
                f"one of {divisors(self.n_heads)}"
            )
        if isinstance(self.norm, BatchNormConfig):
            raise ValueError("norm normalises each head of each token: batchnorm cannot")

    def conflict(self, around: Any) -> str | None:
        """Without widths, the heads must divide the width of the model."""
        try:
            self.heads(around.d_model)
        except ValueError as error:
            return str(error)
        return None

    def heads(self, d_model: int) -> DeltaHeads:
        """The heads for `d_model`. Raises `ValueError` where they do not divide it."""
        if d_model % self.n_heads and (self.d_key is None or self.d_value is None):
            raise ValueError(
                f"d_model = {d_model} does not divide into n_heads = {self.n_heads}: n_heads must "
                f"be one of {divisors(d_model)}, or d_key and d_value must be given"
            )
        return DeltaHeads(
            n_heads=self.n_heads,
            n_key_heads=self.n_key_heads or self.n_heads,
            d_key=self.d_key or d_model // self.n_heads,
            d_value=self.d_value or d_model // self.n_heads,
        )

    def build(self, d_model: int, position: Position, causal: bool, layer: int = 0) -> GatedDelta:
        return GatedDelta(d_model, self.heads(d_model), self)
