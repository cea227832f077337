"""Mixture of experts: a router sends every token to a few of many feed-forward layers.

The union of all feed-forward layers is at the end of this file, since an expert is itself one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.choices import is_intercepted
from addnorm.nn.feedforward import (
    ClampedFeedForward,
    ClampedFeedForwardConfig,
    DenseFeedForwardConfig,
    FeedForward,
    FeedForwardConfig,
    FeedForwardPart,
    GatedFeedForward,
    GatedFeedForwardConfig,
    build_feedforward,
)
from addnorm.nn.functional import eagerly
from addnorm.nn.linear import Linear
from addnorm.nn.no_sublayer import NoFeedForwardConfig
from addnorm.nn.routers import (
    AnyRouterConfig,
    Router,
    RouterConfig,
    RouterLogits,
    SigmoidRouterConfig,
    SoftmaxRouter,
    SoftmaxRouterConfig,
    check_groups,
)
from addnorm.nn.types import TokenVectors
from addnorm.parts import Family

REGISTERS = 32
"""Numbers that torch's elementwise kernels process at a time: two registers of 16 in float32."""

ALIGNED = 16
"""Bytes of which the rows of every factor must be a multiple: torch's rule for grouped products."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The types that torch multiplies in groups; float64 is left to one product for each layer."""

GROUPED = 4096
"""Choices from which a grouped product pays for stacking the weights (`benchmarks/moe.py`)."""


class MixtureOfExperts(nn.Module):
    """`Σ_{e in top-k} g_e(x) E_e(x)`, `g` and the choice from `router` (`Router.route`).

    Shazeer et al. 2017, eq. 1. With a `shared` expert, which every token takes, `+ E_s(x)` (Dai et
    al. 2024, §3.2), times `σ(x w)` with a `shared_gate` (Qwen Team 2024). Each expert reads its own
    tokens alone, so a token costs k experts however many there are. By default an expert has no
    capacity and drops nothing: batch-mates change no result by more than a rounding (`outputs`).
    With `capacity_factor` c, in training, an expert takes the first `⌈c k tokens / n_experts⌉`
    choices alone (Fedus et al. 2022, §2.2; see `within_capacity`) and adds nothing to the others,
    so there a result does depend on the batch; padding takes places too. At inference nothing is
    dropped. Nothing here evens out the load: training adds `balance` times `load_balance`.
    """

    def __init__(
        self,
        d_model: int,
        experts: Sequence[nn.Module],
        *,
        top_k: int,
        router: AnyRouterConfig = SoftmaxRouterConfig(),  # noqa: B008
        balance: float = 0.01,
        capacity_factor: float | None = None,
        shared: nn.Module | None = None,
        shared_gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= len(experts):
            raise ValueError(_refusal(top_k, len(experts)))
        self.router = router.build(d_model, len(experts), top_k)
        self.experts = nn.ModuleList(experts)
        self.shared = shared
        self.shared_gate = shared_gate
        self.balance = balance
        self.capacity_factor = capacity_factor
        narrowest = min((p.shape[0] for p in self.experts.parameters() if p.ndim > 1), default=1)
        self.spare = -(-REGISTERS // narrowest)

    def forward(self, x: TokenVectors) -> TokenVectors:
        # The shapes in `mix` depend on the data.
        y = self.dense(x) if torch.compiler.is_exporting() else eagerly(self.mix)(x)
        if self.shared is None:
            return y
        shared = self.shared(x)
        return y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)

    def mix(self, x: TokenVectors) -> TokenVectors:
        """Compute the sum, each expert on the tokens routed to it, within its capacity."""
        gates, chosen = self.router.route(self.router(x))
        order = chosen.flatten().argsort(stable=True)  # (token, choice) pairs, expert by expert
        if (capacity := self.capacity(chosen)) is not None:
            order = order[within_capacity(chosen, capacity).flatten()[order]]
        counts = chosen.flatten()[order].bincount(minlength=len(self.experts))
        y = self.outputs(x.reshape(-1, x.shape[-1]), order // self.router.top_k, counts)
        y = y.new_zeros(chosen.numel(), y.shape[-1]).index_copy(0, order, y)
        return (gates.to(y.dtype)[..., None] * y.view(*chosen.shape, y.shape[-1])).sum(-2)

    def dense(self, x: TokenVectors) -> TokenVectors:
        """Compute the sum over all experts, the gates of those not chosen being zero.

        For graphs, whose shapes may not depend on the data: equal to `mix` at inference up to
        rounding, at the cost of every expert.
        """
        gates, chosen = self.router.route(self.router(x))
        each = (chosen[..., None] == torch.arange(len(self.experts), device=x.device)).to(x.dtype)
        weights = (gates.to(x.dtype)[..., None] * each).sum(-2)
        y = torch.stack([expert(x) for expert in self.experts], dim=-2)
        return (weights[..., None] * y).sum(-2)

    def capacity(self, chosen: Int[Tensor, "*tokens top_k"]) -> int | None:
        """The most tokens that an expert takes; None without a limit, as at inference."""
        if self.capacity_factor is None or not self.training:
            return None
        return math.ceil(self.capacity_factor * chosen.numel() / len(self.experts))

    def outputs(
        self,
        x: Float[Tensor, "tokens d_model"],
        tokens: Int[Tensor, " n"],
        counts: Int[Tensor, " n_experts"],
    ) -> Float[Tensor, "n d_model"]:
        """`E_e` of the tokens of each group `e`: by grouped products if many, else by expert.

        Grouped (`grouped_feedforward`), other tokens may move an output by a rounding, since a
        product of other size may sum in another order. Custom experts, narrow widths and few tokens
        take one product for each expert (`expert_outputs`), which batch-mates do not move.
        """
        if len(tokens) >= GROUPED and can_group(list(self.experts), x):
            return grouped_feedforward(x[tokens], cast("Any", list(self.experts)), counts)
        groups = enumerate(tokens.split(counts.tolist()))
        return torch.cat([self.expert_outputs(e, x, group) for e, group in groups])

    def expert_outputs(
        self, e: int, x: Float[Tensor, "tokens d_model"], group: Int[Tensor, " n"]
    ) -> Float[Tensor, "n d_model"]:
        """`E_e` of the tokens in `group`, each independent of the others in the group.

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


def within_capacity(
    chosen: Int[Tensor, "*tokens top_k"], capacity: int
) -> Bool[Tensor, "*tokens top_k"]:
    """Which choices are among the first `capacity` of their expert; the others are dropped.

    All first choices come before all second ones, and earlier tokens before later ones (Lepikhin et
    al. 2021, §2.2, without its random routing). A token whose choices are all dropped passes by the
    residual alone; the gates of the other choices are not changed.
    """
    by_choice = chosen.reshape(-1, chosen.shape[-1]).T.flatten()
    order = by_choice.argsort(stable=True)
    counts = by_choice.bincount()
    starts = (counts.cumsum(0) - counts)[by_choice[order]]
    within = torch.empty_like(by_choice, dtype=torch.bool)
    within[order] = torch.arange(len(order), device=order.device) - starts < capacity
    return within.view(chosen.shape[-1], -1).T.reshape(chosen.shape)


def grouped_feedforward(
    x: Float[Tensor, "rows d_model"],
    experts: Sequence[FeedForward] | Sequence[GatedFeedForward] | Sequence[ClampedFeedForward],
    counts: Int[Tensor, " n_experts"],
) -> Float[Tensor, "rows d_model"]:
    """Apply expert e to the e-th group of `counts[e]` rows, by one grouped product for each map.

    The layers `can_group`, and their equations are their own; equal to one call for each group up
    to rounding. The weights stay those of each layer:
    they are stacked here, and their gradients go back to them.
    """

    def product(x: Tensor, layers: Sequence[Linear]) -> Tensor:
        return _grouped_linear(x, layers, counts)

    first = experts[0]
    h = product(x, [expert.up_proj for expert in experts])
    if isinstance(first, FeedForward):
        h = first.activation(h)
    else:
        gates = [expert.gate_proj for expert in experts if not isinstance(expert, FeedForward)]
        h = first.product(product(x, gates), h)
    return product(first.dropout(h), [expert.down_proj for expert in experts])


def can_group(experts: Sequence[nn.Module], x: Float[Tensor, "rows d_model"]) -> bool:
    """Whether `grouped_feedforward` can compute these experts: built-in, alike, with aligned rows.

    False for custom layers, replaced or hooked parts, float64, and widths whose rows are not a
    multiple of 16 bytes.
    """
    kinds = {type(expert) for expert in experts}
    if x.dtype not in DTYPES or torch.is_autocast_enabled(x.device.type):
        return False
    if kinds not in ({FeedForward}, {GatedFeedForward}, {ClampedFeedForward}):
        return False
    return len({_description(expert) for expert in experts}) == 1 and all(
        _is_plain(layer, x) for expert in experts for layer in expert.modules()
    )


def _grouped_linear(x: Tensor, layers: Sequence[Linear], counts: Tensor) -> Tensor:
    weight = torch.stack([layer.weight for layer in layers]).transpose(1, 2)
    y = F.grouped_mm(x, weight, offs=counts.cumsum(0).int())
    named = (item for layer in layers for item in layer.named_parameters())
    biases: list[Tensor] = [tensor for name, tensor in named if name == "bias"]
    if not biases:
        return y
    return y + torch.stack(biases).repeat_interleave(counts, dim=0, output_size=len(x))


def _description(expert: nn.Module) -> tuple[object, ...]:
    """The settings that all experts must share: function, dropout, the shape of every weight."""
    assert isinstance(expert, FeedForward | GatedFeedForward | ClampedFeedForward)
    shapes = tuple((name, weight.shape) for name, weight in expert.named_parameters())
    clamps = (expert.limit, expert.offset) if isinstance(expert, ClampedFeedForward) else ()
    return expert.activation, expert.dropout.p, expert.training, *clamps, shapes


def _is_plain(layer: nn.Module, x: Tensor) -> bool:
    """Whether a part is not intercepted and, if linear, has aligned weights in the type of `x`."""
    if is_intercepted(layer):
        return False
    if not isinstance(layer, nn.Linear):
        return True
    aligned = all(n * x.element_size() % ALIGNED == 0 for n in layer.weight.shape)
    return type(layer) is Linear and layer.weight.dtype == x.dtype and aligned


def expert_load(
    chosen: Int[Tensor, "*tokens top_k"],
    n_experts: int,
    valid: Bool[Tensor, "*tokens"] | None = None,
) -> Int[Tensor, " n_experts"]:
    """The number of choices that went to each expert, over the real tokens."""
    real = chosen if valid is None else chosen[valid]
    return real.flatten().bincount(minlength=n_experts)


def load_balance(
    logits: RouterLogits,
    top_k: int,
    valid: Bool[Tensor, "*tokens"] | None = None,
    total: Callable[[Tensor, int], tuple[Tensor, int]] = lambda choices, n: (choices, n),
    router: Router | None = None,
) -> Float[Tensor, ""]:
    """`n_experts Σ_e f_e P_e`: one if the load is balanced, at most `n_experts / top_k`.

    Fedus et al. 2022, eq. 4–6: `f_e` is the fraction of choices that went to expert e, `P_e` its
    mean share of a token's scores, both over the real tokens, by a `router`, or else by a softmax.
    Only `P` has a gradient. Zero if there is no real token. With more tokens elsewhere, `total`
    maps the choices of each expert and the number of tokens to those of all: the result is then the
    summand of these tokens.
    """
    real = logits.reshape(-1, logits.shape[-1]) if valid is None else logits[valid]
    router = router or SoftmaxRouter(1, logits.shape[-1], top_k, SoftmaxRouterConfig())
    scores = router.scores(real)
    shares = scores / scores.sum(-1, keepdim=True)
    n_tokens, n_experts = shares.shape
    choices = expert_load(router.choose(scores), n_experts)
    choices, n_tokens = total(choices, n_tokens)
    scale = n_experts / (max(n_tokens, 1) ** 2 * top_k)
    return scale * (choices * shares.sum(0)).sum()


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
    router: RouterConfig = SoftmaxRouterConfig()
    """How experts are chosen and weighed."""
    expert: DenseFeedForwardConfig = GatedFeedForwardConfig()
    """The kind and width of one expert."""
    shared: DenseFeedForwardConfig | None = None
    """An expert besides these that every token takes (Dai et al. 2024, §3.2); None for none."""
    shared_gate: bool = False
    """Whether the shared expert is multiplied by the sigmoid of a linear map of the token."""
    balance: NonNegativeFloat = 0.01
    """The weight of the load-balance loss in training."""
    capacity_factor: PositiveFloat | None = None
    """In training, an expert takes this times its even share; None drops nothing."""

    def __post_init__(self) -> None:
        if self.top_k > self.n_experts:
            raise ValueError(_refusal(self.top_k, self.n_experts))
        check_groups(self.router, self.n_experts, self.top_k)
        if self.shared_gate and self.shared is None:
            raise ValueError("shared_gate = true without a shared expert: give shared, such as {}")

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Top-2 and top-1 routing; gated and plain experts; sigmoids, groups, a shared expert."""
        sigmoid = SigmoidRouterConfig(scale=1.5, n_groups=2)
        return {
            "moe": cls(n_experts=3, expert=GatedFeedForwardConfig(d_ff=4)),
            "moe_one_of_four": cls(n_experts=4, top_k=1, expert=GatedFeedForwardConfig(d_ff=4)),
            "moe_ungated": cls(n_experts=3, expert=FeedForwardConfig(d_ff=4, activation="gelu")),
            "moe_shared": cls(
                n_experts=4,
                router=sigmoid,
                expert=GatedFeedForwardConfig(d_ff=4),
                shared=GatedFeedForwardConfig(d_ff=8),
                shared_gate=True,
            ),
        }

    def build(self, d_model: int) -> MixtureOfExperts:
        experts = [build_feedforward(self.expert, d_model) for _ in range(self.n_experts)]
        return MixtureOfExperts(
            d_model,
            experts,
            top_k=self.top_k,
            router=self.router,
            balance=self.balance,
            capacity_factor=self.capacity_factor,
            shared=None if self.shared is None else build_feedforward(self.shared, d_model),
            shared_gate=nn.Linear(d_model, 1, bias=False) if self.shared_gate else None,
        )


AnyFeedForwardConfig = Annotated[
    FeedForwardConfig
    | GatedFeedForwardConfig
    | ClampedFeedForwardConfig
    | MixtureOfExpertsConfig
    | NoFeedForwardConfig
    | FeedForwardPart,
    Family("feedforward", FeedForwardPart),
]
"""Any feed-forward layer, built-in or custom."""
