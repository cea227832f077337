"""Mamba-2: a memory that decays by steps of a length that each token chooses."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.functional import at_least_float32, rms_norm
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
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import Compacted
from addnorm.nn.short_convolution import Channels, ShortConvolution
from addnorm.nn.types import Hidden, divisors

Order = Literal["gate_norm", "norm_gate"]


def selective_steps(x: RecurrenceInputs, state: MatrixState, begins: Begins | None = None) -> Read:
    """One token at a time: `S ← α S + k (Δ v)ᵀ`, `o = Sᵀq`. Returns the outputs and the state."""
    return recurrence_steps(x, state, begins, lambda now, _: now.rate * now.v)


def selective_chunks(
    x: RecurrenceInputs, state: MatrixState, size: int, begins: Begins | None = None
) -> Read:
    """`selective_steps` by chunks of `size` tokens (Dao & Gu 2024, §6)."""
    chunks = Chunks.of(x, size, begins)
    return chunks.read(chunks.x.rate * chunks.x.v, state)


class GroupRMSNorm(nn.Module):
    """`γ ⊙ x / √(mean(x²) + ε)`, the mean over each of `n_groups` groups of features.

    Zhang & Sennrich 2019; the groups are those of Mamba-2 (Dao & Gu 2024, §8.1).
    """

    def __init__(self, width: int, n_groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.n_groups, self.eps = n_groups, eps

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        groups = x.unflatten(-1, (self.n_groups, -1))
        return rms_norm(groups, eps=self.eps).flatten(-2) * self.weight


class Mamba2(LinearRecurrence):
    """`norm(y ⊙ silu(x W_z)) W_o`, where `S_t = e^{Δ_t A} S_{t-1} + Δ_t B_t u_tᵀ`.

    And `y_t = S_tᵀ C_t + D u_t` (Dao & Gu 2024, 2405.21060, §7). The discretisation is that of Gu &
    Dao 2023, §2, with `Δ B` for its integral. `u`, `B` and `C` are maps of `x`, then a
    `ShortConvolution` and SiLU; `Δ = softplus(x W_Δ + b)` and `A = −exp(a)`, one of each head.
    Consecutive heads share `B` and `C` of a group. The norm is over each group, after the gate or
    (`order = "norm_gate"`) before. `S` is `d_state × d_head`; `C` are the queries, `B` the keys and
    `u` the values of `linear_recurrence`.
    """

    steps = staticmethod(selective_steps)
    chunks = staticmethod(selective_chunks)

    def __init__(self, d_model: int, d_head: int, settings: "Mamba2Config") -> None:
        super().__init__()
        s = settings
        self.n_heads, self.n_groups, self.d_state = s.n_heads, s.n_groups, s.d_state
        self.order, self.chunk = s.order, s.chunk
        self.width, shared = s.n_heads * d_head, s.n_groups * s.d_state
        self.gate_proj = Linear(d_model, self.width, bias=s.bias)
        self.v_proj = Linear(d_model, self.width, bias=s.bias)
        self.k_proj = Linear(d_model, shared, bias=s.bias)
        self.q_proj = Linear(d_model, shared, bias=s.bias)
        self.step_proj = Linear(d_model, s.n_heads, bias=s.bias)
        self.short = ShortConvolution(self.width + 2 * shared, s.kernel_size, bias=s.kernel_bias)
        self.log_speed = nn.Parameter(torch.empty(s.n_heads))
        self.step_bias = nn.Parameter(torch.empty(s.n_heads))
        self.skip = nn.Parameter(torch.ones(s.n_heads))
        self.norm = GroupRMSNorm(self.width, s.n_groups, s.eps)
        self.out_proj = Linear(self.width, d_model, bias=s.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the speeds and steps (`draw_decays`); `D` starts at one."""
        draw_decays(self.log_speed, self.step_bias)
        nn.init.ones_(self.skip)

    @property
    def state_size(self) -> tuple[int, int]:
        return self.d_state, self.width // self.n_heads

    def projected(self, tokens: Hidden) -> Channels:
        projections = self.v_proj, self.k_proj, self.q_proj
        return torch.cat([proj(tokens) for proj in projections], dim=-1)

    def inputs(self, mixed: Channels, tokens: Hidden, rows: Compacted) -> RecurrenceInputs:
        """The inputs of the recurrence, with steps of zero at padding."""
        shared = self.n_groups * self.d_state
        v, k, q = at_least_float32(mixed).split([self.width, shared, shared], dim=-1)
        share = self.n_heads // self.n_groups
        k, q = (self.split(y, self.n_groups).repeat_interleave(share, dim=1) for y in (k, q))
        steps = F.softplus(at_least_float32(self.step_proj(tokens)) + self.step_bias)
        if rows.order is not None:
            steps = steps.masked_fill(~rows.real[..., None], 0.0)
        rate = self.split(steps, self.n_heads)
        speed = at_least_float32(self.log_speed).exp()[:, None, None]
        return RecurrenceInputs(
            q=q, k=k, v=self.split(v, self.n_heads), log_decay=-speed * rate, rate=rate
        )

    def gated(self, heads: RecurrentValues, x: RecurrenceInputs, tokens: Hidden) -> Channels:
        heads = heads + at_least_float32(self.skip)[:, None, None] * x.v
        y = heads.transpose(1, 2).flatten(-2)
        gates = F.silu(at_least_float32(self.gate_proj(tokens)))
        return self.norm(y * gates) if self.order == "gate_norm" else self.norm(y) * gates


@config
class Mamba2Config:
    """Mamba-2: a linear recurrence with a state of `d_state × d_head` in each head.

    Positions are left to the recurrence.
    """

    kind: Literal["mamba2"] = "mamba2"
    n_heads: PositiveInt = 8
    """Heads of the recurrence."""
    d_head: PositiveInt | None = None
    """The width of a head; by default that of 2 d_model in all."""
    d_state: PositiveInt = 128
    """The numbers that the state has for each feature of a head."""
    n_groups: PositiveInt = 1
    """Groups of heads that share what writes to the state and what reads it."""
    kernel_size: PositiveInt = 4
    """Tokens that the short convolution spans."""
    kernel_bias: bool = True
    """Whether the short convolution has a bias."""
    bias: bool = False
    """Whether the projections have biases."""
    order: Order = "gate_norm"
    """Whether the gate comes before the norm of each group or after it."""
    eps: PositiveFloat = 1e-5
    """The ε of the norm."""
    chunk: PositiveInt = 64
    """Tokens that are computed at once in training and in reading a prompt; the result is the same
    for all.
    """

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Two groups, and the norm before the gate."""
        return {
            "mamba2": cls(n_heads=4, d_state=3, n_groups=2, chunk=3),
            "mamba2_norm_first": cls(
                n_heads=2, d_head=3, d_state=5, bias=True, kernel_bias=False, order="norm_gate"
            ),
        }

    def __post_init__(self) -> None:
        if self.n_heads % self.n_groups:
            raise ValueError(
                f"n_groups = {self.n_groups} does not divide n_heads = {self.n_heads}: it must be "
                f"one of {divisors(self.n_heads)}"
            )

    def conflict(self, around: Any) -> str | None:
        """Without a given width, twice the model's width must divide into heads."""
        try:
            self.width(around.d_model)
        except ValueError as error:
            return str(error)
        return None

    def width(self, d_model: int) -> int:
        """The width of a head. Raises `ValueError` where heads do not divide twice `d_model`."""
        if self.d_head is None and 2 * d_model % self.n_heads:
            raise ValueError(
                f"2 d_model = {2 * d_model} does not divide into n_heads = {self.n_heads}: n_heads "
                f"must be one of {divisors(2 * d_model)}, or d_head must be given"
            )
        return self.d_head or 2 * d_model // self.n_heads

    def build(self, d_model: int, position: Position, causal: bool, layer: int = 0) -> Mamba2:
        return Mamba2(d_model, self.width(d_model), self)
