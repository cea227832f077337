"""Attention score functions: scaled dot product, dot product, bilinear and additive."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.built import built_module
from addnorm.nn.functional import soft_capped
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import ExpandedKeys, HeadShape, Queries
from addnorm.parts import Family, is_ours

Scores = Float[Tensor, "batch heads q_seq kv_seq"]


class Score(nn.Module, ABC):
    """`score(q, k)` for every pair of a head's queries and keys."""

    @abstractmethod
    def forward(self, q: Queries, k: ExpandedKeys) -> Scores: ...


class DotProduct(Score):
    """`scale · kᵀ W q`: dot, scaled dot and bilinear scores, which fused kernels support.

    With `softcap` they are `c tanh(score / c)`, which fused kernels do not support (Gemma Team
    2024, §2). Without `weight`, `W` is the identity. `scale = 1/√d_head` keeps the variance of the
    scores of unit-normal vectors at one (Vaswani et al. 2017, §3.2.1), `scale = 1` lets it grow to
    `d_head`. The bilinear form is that of Luong et al. 2015, §3.1 ("general"), one matrix for each
    head.
    """

    splits: ClassVar[Splits] = {"weight": Split(0)}

    def __init__(
        self,
        scale: float,
        weight: Float[Tensor, "heads d_head d_head"] | None = None,
        *,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.softcap = softcap
        self.weight = None if weight is None else nn.Parameter(weight)

    def queries(self, q: Queries) -> Queries:
        """`W q`, so that the score is a scaled dot product with the keys."""
        return q if self.weight is None else q @ self.weight.mT.to(q.dtype)

    def forward(self, q: Queries, k: ExpandedKeys) -> Scores:
        return soft_capped(self.queries(q) @ k.transpose(-2, -1) * self.scale, self.softcap)


class Additive(Score):
    """`vᵀ tanh(W k + U q)` (Bahdanau et al. 2015, appendix A.1.2), one `v, W, U` for each head.

    Takes `d_head` times the memory of the scores; no fused kernel supports it.
    """

    splits: ClassVar[Splits] = {"key": Split(0), "query": Split(0), "vector": Split(0)}

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.key = nn.Parameter(_normal(n_heads, d_head, d_head, std=d_head**-0.5))
        self.query = nn.Parameter(_normal(n_heads, d_head, d_head, std=d_head**-0.5))
        self.vector = nn.Parameter(_normal(n_heads, d_head, 1, std=d_head**-0.5))

    def forward(self, q: Queries, k: ExpandedKeys) -> Scores:
        keys, queries = k @ self.key.to(k.dtype), q @ self.query.to(q.dtype)
        hidden = torch.tanh(queries[:, :, :, None] + keys[:, :, None])
        return (hidden @ self.vector.to(q.dtype)[:, None]).squeeze(-1)


def _normal(*shape: int, std: float) -> Tensor:
    return torch.empty(*shape).normal_(std=std)


@config
class ScaledDotConfig:
    """`q·k / √d_head` (Vaswani et al. 2017, §3.2.1).

    `factor` replaces `1/√d_head`; `softcap` keeps scores within ± itself (Gemma 2).
    """

    kind: Literal["scaled_dot"] = "scaled_dot"
    factor: PositiveFloat | None = None
    """The factor that multiplies scores; by default 1/√d_head."""
    softcap: PositiveFloat | None = None
    """Keep scores within ± this by c·tanh(score/c) (Gemma Team 2024, §2); by default unbounded."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Default, with a custom factor, and with soft-capping."""
        return {
            "scaled_dot": cls(),
            "scaled_dot_factor": cls(factor=0.25),
            "scaled_dot_softcap": cls(factor=0.7, softcap=2.0),
        }

    def scale(self, d_head: int) -> float:
        """The factor that multiplies the dot products."""
        return d_head**-0.5 if self.factor is None else self.factor

    def build(self, n_heads: int, d_head: int) -> DotProduct:
        return DotProduct(self.scale(d_head), softcap=self.softcap)


@config
class DotConfig:
    """`q·k` (Luong et al. 2015, §3.1), the score of T5."""

    kind: Literal["dot"] = "dot"

    def build(self, n_heads: int, d_head: int) -> DotProduct:
        return DotProduct(1.0)


@config
class BilinearConfig:
    """`kᵀ W q` (Luong et al. 2015, §3.1).

    `W` starts so that scores of unit-normal vectors have variance one.
    """

    kind: Literal["bilinear"] = "bilinear"

    def build(self, n_heads: int, d_head: int) -> DotProduct:
        return DotProduct(1.0, _normal(n_heads, d_head, d_head, std=1 / d_head))


@config
class AdditiveConfig:
    """`vᵀ tanh(W k + U q)` (Bahdanau et al. 2015, appendix A.1.2)."""

    kind: Literal["additive"] = "additive"

    def build(self, n_heads: int, d_head: int) -> Additive:
        return Additive(n_heads, d_head)


@runtime_checkable
class ScorePart(Protocol):
    """A configuration of a score.

    The module it builds is called as `score(q, k)`, `q` of shape `[batch, heads, q_seq, d_head]`
    and `k` of `[batch, heads, kv_seq, d_head]`, and returns `[batch, heads, q_seq, kv_seq]`. The
    eager core runs it.
    """

    def build(self, n_heads: int, d_head: int) -> nn.Module: ...


ScoreConfig = Annotated[
    ScaledDotConfig | DotConfig | BilinearConfig | AdditiveConfig | ScorePart,
    Family("score", ScorePart),
]
"""Any score function, built-in or custom."""


def is_fused(score: ScoreConfig) -> bool:
    """Whether torch's fused kernels compute this score: a custom subclass may score otherwise."""
    if not is_ours(type(score)):
        return False
    capped = isinstance(score, ScaledDotConfig) and score.softcap is not None
    return isinstance(score, ScaledDotConfig | DotConfig | BilinearConfig) and not capped


def is_plain_product(score: ScoreConfig) -> bool:
    """Whether the score is a plain product `q·k`, so that rotating both (RoPE) is meaningful.

    Assumed for custom scores.
    """
    return not isinstance(score, BilinearConfig | AdditiveConfig)


def scale_of(score: ScoreConfig, d_head: int) -> float:
    """The factor that multiplies `q·k`; 1 for scores other than the scaled dot product."""
    return score.scale(d_head) if isinstance(score, ScaledDotConfig) else 1.0


def build_score(score: ScoreConfig, heads: HeadShape) -> nn.Module:
    """The score of these heads. Raises `InputError` if a custom part builds none."""
    n, d_head = heads.n_heads, heads.d_head
    q, k = torch.zeros(2, n, 3, d_head), torch.zeros(2, n, 4, d_head)
    return built_module(score, score.build(n, d_head), "score(q, k)", (q, k), (2, n, 3, 4))
