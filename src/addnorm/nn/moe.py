"""Mixture of experts: a router sends every token to a few of many feed-forward layers.

The union of all feed-forward layers is at the end of this file, since an expert is itself one.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.feedforward import (
    DenseFeedForwardConfig,
    FeedForwardConfig,
    FeedForwardPart,
    GatedFeedForwardConfig,
    build_feedforward,
)
from addnorm.nn.types import TokenVectors
from addnorm.parts import Family

RouterLogits = Float[Tensor, "*tokens n_experts"]

REGISTERS = 32
"""Numbers that torch's elementwise kernels process at a time: two registers of 16 in float32."""


class MixtureOfExperts(nn.Module):
    """`Σ_{e in top-k} g_e(x) E_e(x)`, `g` and the choice from `softmax(x W_r)`: see `route`.

    Shazeer et al. 2017, eq. 1; the router is linear and without noise (Fedus et al. 2022, §2.1;
    Jiang et al. 2024, §2.1). Each expert reads its own tokens alone, so a token costs k experts
    however many there are. An expert has no capacity and drops nothing: batch-mates never change a
    result. Nothing here evens out the load: training adds `balance` times `load_balance`.
    """

    def __init__(
        self, d_model: int, experts: Sequence[nn.Module], *, top_k: int, balance: float = 0.01
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= len(experts):
            raise ValueError(_refusal(top_k, len(experts)))
        self.router = nn.Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.top_k = top_k
        self.balance = balance
        narrowest = min((p.shape[0] for p in self.experts.parameters() if p.ndim > 1), default=1)
        self.spare = -(-REGISTERS // narrowest)

    def forward(self, x: TokenVectors) -> TokenVectors:
        mix: Any = self.mix
        if torch.compiler.is_compiling():  # its shapes depend on the data
            mix = torch.compiler.disable(mix)
        return mix(x)

    def mix(self, x: TokenVectors) -> TokenVectors:
        """Compute the sum, expert by expert, each on the tokens routed to it."""
        gates, chosen = route(self.router(x), self.top_k)
        order = chosen.flatten().argsort(stable=True)  # (token, choice) pairs, expert by expert
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        groups = (order // self.top_k).split(counts)
        x = x.reshape(-1, x.shape[-1])
        y = [self.outputs(e, x, group) for e, group in enumerate(groups)]
        y = torch.cat(y)[order.argsort()].view(*chosen.shape, x.shape[-1])
        return (gates.to(y.dtype)[..., None] * y).sum(-2)

    def outputs(
        self, e: int, x: Float[Tensor, "tokens d_model"], group: Int[Tensor, " n"]
    ) -> Float[Tensor, "n d_model"]:
        """`E_e` of the tokens in `group`, the same whoever else is in it.

        On a CPU a product of one row rounds differently from one of several, and so does an
        elementwise function at the end of a tensor, where the numbers fill no register. Copies of
        the last token, left out again, see to it that no token is alone or at the end: on one
        thread it is the same to the last bit. Where torch shares a large group among n threads,
        each of their parts has an end: to the last bit if the width of the experts is a multiple of
        32 n (1344 on two threads); at another, such as the 1365 that gated experts have by default
        at d_model = 512, later tokens may move earlier outputs by a rounding (1e-8 was seen).
        """
        n = len(group)
        spare = self.spare if n and len(x) > 1 else 0  # no batch-mates if `x` is one token
        rows = torch.cat([group, group[-1:].expand(spare)]) if spare else group
        return self.experts[e](x[rows])[:n]


def route(
    logits: RouterLogits, top_k: int
) -> tuple[Float[Tensor, "*tokens top_k"], Int[Tensor, "*tokens top_k"]]:
    """The gates and indices of the `top_k` most probable experts, in descending order.

    `g_e = p_e / Σ_{top-k} p`, `p = softmax(logits)` in at least float32 (Jiang et al. 2024, §2.1).
    With one expert `g_e = p_e` (Fedus et al. 2022, eq. 2): normalised it would always be one, and
    the router would get no gradient.
    """
    probabilities, chosen = _probabilities(logits).topk(top_k)
    if top_k == 1:
        return probabilities, chosen
    return probabilities / probabilities.sum(-1, keepdim=True), chosen


def load_balance(
    logits: RouterLogits, top_k: int, valid: Bool[Tensor, "*tokens"] | None = None
) -> Float[Tensor, ""]:
    """`n_experts Σ_e f_e P_e`: one if the load is balanced, at most `n_experts / top_k`.

    Fedus et al. 2022, eq. 4–6: `f_e` is the fraction of choices that went to expert e, `P_e` its
    mean probability, both over the real tokens. Only `P` has a gradient. Zero if there is no real
    token.
    """
    real = logits.reshape(-1, logits.shape[-1]) if valid is None else logits[valid]
    probabilities = _probabilities(real)
    n_tokens, n_experts = probabilities.shape
    choices = probabilities.topk(top_k).indices.flatten().bincount(minlength=n_experts)
    scale = n_experts / (max(n_tokens, 1) ** 2 * top_k)
    return scale * (choices * probabilities.sum(0)).sum()


def _probabilities(logits: RouterLogits) -> RouterLogits:
    return (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)


def _refusal(top_k: int, n_experts: int) -> str:
    return f"top_k = {top_k} of n_experts = {n_experts} is impossible: give 1 to {n_experts}"


@config
class MixtureOfExpertsConfig:
    """`n_experts` layers of the kind `expert`, of which every token takes `top_k`."""

    kind: Literal["moe"] = "moe"
    n_experts: Annotated[int, Field(ge=2)] = 8
    """The number of experts, from which the router chooses."""
    top_k: PositiveInt = 2
    """The number of experts that each token is routed to."""
    expert: DenseFeedForwardConfig = GatedFeedForwardConfig()
    """The kind and width of one expert."""
    balance: NonNegativeFloat = 0.01
    """The weight of the load-balance loss in training."""

    def __post_init__(self) -> None:
        if self.top_k > self.n_experts:
            raise ValueError(_refusal(self.top_k, self.n_experts))

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Top-2 and top-1 routing; gated and plain experts."""
        return {
            "moe": cls(n_experts=3, expert=GatedFeedForwardConfig(d_ff=4)),
            "moe_one_of_four": cls(n_experts=4, top_k=1, expert=GatedFeedForwardConfig(d_ff=4)),
            "moe_ungated": cls(n_experts=3, expert=FeedForwardConfig(d_ff=4, activation="gelu")),
        }

    def build(self, d_model: int) -> MixtureOfExperts:
        experts = [build_feedforward(self.expert, d_model) for _ in range(self.n_experts)]
        return MixtureOfExperts(d_model, experts, top_k=self.top_k, balance=self.balance)


AnyFeedForwardConfig = Annotated[
    FeedForwardConfig | GatedFeedForwardConfig | MixtureOfExpertsConfig | FeedForwardPart,
    Family("feedforward", FeedForwardPart),
]
"""Any feed-forward layer, built-in or custom."""
