"""Routers of mixtures of experts: which experts a token takes, and with which weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import WORD, config
from addnorm.nn.functional import at_least_float32

RouterLogits = Float[Tensor, "*tokens n_experts"]
Gates = Float[Tensor, "*tokens top_k"]
Chosen = Int[Tensor, "*tokens top_k"]


class Router(nn.Linear, ABC):
    """The logits `x W_r` of the experts, by which each token chooses (`route`).

    Experts may be in `n_groups` groups of neighbours, of which a token takes experts of the best
    `top_groups` alone (DeepSeek-AI 2024a, §2.2.2).
    """

    def __init__(self, d_model: int, n_experts: int, top_k: int, settings: "AnyRouterConfig"):
        super().__init__(d_model, n_experts, bias=settings.bias)
        self.top_k = top_k
        self.normalize = top_k > 1 if settings.normalize is None else settings.normalize
        self.scale = settings.scale
        self.n_groups, self.top_groups = settings.n_groups, settings.top_groups

    @abstractmethod
    def scores(self, logits: RouterLogits) -> RouterLogits:
        """The score of each expert in at least float32: its gate before `normalize` and `scale`."""

    @abstractmethod
    def preference(self, scores: RouterLogits) -> RouterLogits:
        """The values by which experts are chosen, given their scores."""

    @abstractmethod
    def of_groups(
        self, preference: Float[Tensor, "*tokens n_groups size"]
    ) -> Float[Tensor, "*tokens n_groups"]:
        """The values by which groups are chosen, given the preference for each of their experts."""

    def choose(self, scores: RouterLogits) -> Chosen:
        """The experts that each token takes, best first."""
        preference = self.preference(scores)
        if self.n_groups > 1:
            groups = preference.unflatten(-1, (self.n_groups, -1))
            best = self.of_groups(groups).topk(self.top_groups).indices
            left_out = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(-1, best, False)
            # Not by zero: a preference may be negative.
            preference = groups.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
        return preference.topk(self.top_k).indices

    def route(self, logits: RouterLogits) -> tuple[Gates, Chosen]:
        """The gates and indices of the `top_k` experts of each token, best first.

        `g_e = scale · s_e`, or `scale · s_e / Σ_{top-k} s` with `normalize`.
        """
        scores = self.scores(logits)
        chosen = self.choose(scores)
        gates = scores.gather(-1, chosen)
        if self.normalize:
            gates = gates / gates.sum(-1, keepdim=True).clamp_min(1e-20)
        return self.scale * gates, chosen


class SoftmaxRouter(Router):
    """Scores `s = softmax(x W_r)`, by which experts are chosen, and groups by their best expert.

    Shazeer et al. 2017, eq. 1, without noise (Fedus et al. 2022, §2.1). Normalised over the chosen
    experts, the gates are the softmax of their logits alone (Jiang et al. 2024, §2.1).
    """

    def scores(self, logits: RouterLogits) -> RouterLogits:
        """The probability of each expert."""
        return at_least_float32(logits).softmax(-1)

    def preference(self, scores: RouterLogits) -> RouterLogits:
        """The scores themselves."""
        return scores

    def of_groups(
        self, preference: Float[Tensor, "*tokens n_groups size"]
    ) -> Float[Tensor, "*tokens n_groups"]:
        """The best score in each group (DeepSeek-AI 2024a, §2.2.2)."""
        return preference.amax(-1)


class SigmoidRouter(Router):
    """Scores `s = σ(x W_r)`; experts are chosen by `s + b`, groups by the sum of their two best.

    DeepSeek-AI 2024b, eq. 12–16. The correction `b` chooses and never weighs. It is a buffer:
    after each step of training `move` raises it for experts with less than the mean load, and
    lowers it for those with more (Wang et al. 2024, algorithm 1).
    """

    correction: Float[Tensor, " n_experts"]

    def __init__(self, d_model: int, n_experts: int, top_k: int, settings: "SigmoidRouterConfig"):
        super().__init__(d_model, n_experts, top_k, settings)
        self.correction_rate = settings.correction_rate
        self.register_buffer("correction", torch.zeros(n_experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmoidRouter":
        """Convert all but the correction to a narrow type: its steps are finer than bfloat16's."""
        wide = self.correction
        super()._apply(fn, recurse)
        if self.correction.dtype in (torch.bfloat16, torch.float16):
            self.correction = wide.to(self.correction.device)
        return self

    def scores(self, logits: RouterLogits) -> RouterLogits:
        """The score of each expert, independent of the others."""
        return at_least_float32(logits).sigmoid()

    def preference(self, scores: RouterLogits) -> RouterLogits:
        """`s + b`, without a gradient."""
        return scores.detach() + self.correction

    def of_groups(
        self, preference: Float[Tensor, "*tokens n_groups size"]
    ) -> Float[Tensor, "*tokens n_groups"]:
        """The sum of the two best of each group (DeepSeek-AI 2024b, §2.1.2)."""
        return preference.topk(min(2, preference.shape[-1])).values.sum(-1)

    @torch.no_grad()
    def move(self, load: Int[Tensor, " n_experts"]) -> None:
        """`b_e ← b_e + correction_rate · sign(mean load − load_e)`."""
        wide = load.to(self.correction)
        self.correction += self.correction_rate * (wide.mean() - wide).sign()


@config
class SoftmaxRouterConfig:
    """Gates from one softmax over all experts (Shazeer et al. 2017; Jiang et al. 2024)."""

    kind: Literal["softmax"] = "softmax"
    bias: bool = False
    """Whether the logits have a bias, which is learnt."""
    normalize: bool | None = None
    """Whether the gates of a token sum to `scale`. None: where it takes several experts, since the
    gate of one would always be one and its router would get no gradient (Fedus et al. 2022, eq. 2).
    """
    scale: PositiveFloat = 1.0
    """What all gates are multiplied by."""
    n_groups: PositiveInt = 1
    """The number of groups of experts."""
    top_groups: PositiveInt = 1
    """The number of groups from which a token takes experts."""

    def build(self, d_model: int, n_experts: int, top_k: int) -> Router:
        return SoftmaxRouter(d_model, n_experts, top_k, self)


@config
class SigmoidRouterConfig:
    """Gates from a sigmoid for each expert, whose load is evened out without a loss.

    DeepSeek-AI 2024b, §2.1.2; Wang et al. 2024.
    """

    kind: Literal["sigmoid"] = "sigmoid"
    bias: bool = False
    """Whether the logits have a bias, which is learnt."""
    normalize: bool | None = None
    """Whether the gates of a token sum to `scale`; None: where it takes several experts."""
    scale: PositiveFloat = 1.0
    """What all gates are multiplied by."""
    n_groups: PositiveInt = 1
    """The number of groups of experts."""
    top_groups: PositiveInt = 1
    """The number of groups from which a token takes experts."""
    correction_rate: NonNegativeFloat = 0.001
    """How far the correction of an expert moves after each step of training; 0 keeps it."""

    def build(self, d_model: int, n_experts: int, top_k: int) -> Router:
        return SigmoidRouter(d_model, n_experts, top_k, self)


AnyRouterConfig = SoftmaxRouterConfig | SigmoidRouterConfig
RouterConfig = Annotated[AnyRouterConfig, Field(discriminator="kind"), WORD]
"""Any router."""


def check_groups(router: AnyRouterConfig, n_experts: int, top_k: int) -> None:
    """Raise `ValueError` if a router cannot choose `top_k` of `n_experts` from its groups."""
    n = router.n_groups
    if n_experts % n:
        nearest = min(
            (d for d in range(1, n_experts + 1) if n_experts % d == 0), key=lambda d: abs(d - n)
        )
        raise ValueError(
            f"router.n_groups = {n} does not divide n_experts = {n_experts}: give {nearest}"
        )
    if router.top_groups > n:
        raise ValueError(f"router.top_groups = {router.top_groups} of {n} groups: give 1 to {n}")
    if (room := router.top_groups * n_experts // n) < top_k:
        raise ValueError(
            f"router.top_groups = {router.top_groups} of {n} groups have {room} experts, and top_k "
            f"= {top_k}: give router.top_groups = {-(-top_k * n // n_experts)}"
        )
