"""The gated delta rule: a memory of keys and values that decays and is corrected at every token."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.linear_recurrence import (
    Begins,
    Chunks,
    LinearRecurrence,
    MatrixState,
    Read,
    RecurrenceInputs,
    RecurrentValues,
    draw_decays,
    recurrence_steps,
)
from addnorm.nn.norms import BatchNormConfig, NormConfig, RMSNormConfig, build_norm
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import Compacted
from addnorm.nn.short_convolution import Channels, ShortConvolution
from addnorm.nn.types import Hidden, divisors

EPS = 1e-6
"""The ε of the length of queries and keys."""

Gate = Literal["silu", "sigmoid"]


def unit(x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
    """`x / √(Σ x² + ε)`: vectors of unit length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def delta_steps(x: RecurrenceInputs, state: MatrixState, begins: Begins | None = None) -> Read:
    """One token at a time: `S ← α ⊙ S`, `S ← S + k (β (v − Sᵀk))ᵀ`, `o = Sᵀq`.

    Yang et al. 2024, eq. 10, with `Sᵀ` for their `S`. The state is new where a text `begins`.
    Returns the outputs and the last state.
    """
    return recurrence_steps(x, state, begins, lambda now, s: now.rate * (now.v - now.k @ s))


def delta_chunks(
    x: RecurrenceInputs, state: MatrixState, size: int, begins: Begins | None = None
) -> Read:
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


class GatedDelta(LinearRecurrence):
    """`(norm(o) ⊙ silu(x W_z)) W_o`, `o` read by queries from a memory that keys and values write.

    Yang et al. 2024 (2412.06464), §3: `S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ`,
    `o_t = S_tᵀ q_t`. Queries, keys and values are maps of `x`, then a `ShortConvolution` and SiLU;
    queries and keys have unit length, and queries the factor `1/√d_key`. `β = σ(x W_β)`,
    `ln α = −exp(A) softplus(x W_α + b)`, of each head or, as in Kimi Linear (Kimi Team 2025,
    2510.26692, §3), of each feature of its keys. Consecutive heads share queries and keys where
    there are fewer of those. The norm is over each head.
    """

    steps = staticmethod(delta_steps)
    chunks = staticmethod(delta_chunks)

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

    @property
    def state_size(self) -> tuple[int, int]:
        return self.d_key, self.d_value

    def projected(self, tokens: Hidden) -> Channels:
        projections = self.q_proj, self.k_proj, self.v_proj
        return torch.cat([proj(tokens) for proj in projections], dim=-1)

    def inputs(self, mixed: Channels, tokens: Hidden, rows: Compacted) -> RecurrenceInputs:
        """The inputs of the rule, with decay one and rate zero at padding."""
        wide = at_least_float32(mixed)
        q, k, v = wide.tensor_split((self.key_width, 2 * self.key_width), dim=-1)
        q, k = (self.split(y, self.n_key_heads) for y in (q, k))
        share = self.n_heads // self.n_key_heads
        q, k = (unit(y).repeat_interleave(share, dim=1) for y in (q, k))
        rate = at_least_float32(self.rate_proj(tokens)).sigmoid()
        steps = F.softplus(at_least_float32(self.decay_proj(tokens)) + self.decay_bias)
        log_decay = self.split(steps, self.n_heads)
        log_decay = -at_least_float32(self.log_speed).exp()[:, None, None] * log_decay
        rate = self.split(rate, self.n_heads)
        if rows.order is not None:
            padding = ~rows.real[:, None, :, None]
            rate, log_decay = (y.masked_fill(padding, 0.0) for y in (rate, log_decay))
        return RecurrenceInputs(
            q=q * self.d_key**-0.5,
            k=k,
            v=self.split(v, self.n_heads),
            log_decay=log_decay,
            rate=rate,
        )

    def gated(self, heads: RecurrentValues, x: RecurrenceInputs, tokens: Hidden) -> Channels:
        act = F.silu if self.gate == "silu" else torch.sigmoid
        gates = act(at_least_float32(self.gate_proj(tokens)))
        return self.norm(heads.transpose(1, 2)).flatten(-2) * gates


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
