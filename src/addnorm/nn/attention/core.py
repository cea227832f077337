"""The attention core: the one seam where kernels, score functions and inspection attach.

A core maps projected heads to mixed heads, `core(q, k, v, mask, bias)`. It gets the mask already
evaluated, shares each key/value head among `heads / kv_heads` query heads, and gives zeros, with
zero gradient, to a query that may attend to nothing.
"""

from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn import functional
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Causal, Dense, Full

Queries = Float[Tensor, "batch heads q_seq d_head"]
Keys = Float[Tensor, "batch kv_heads kv_seq d_head"]
Bias = Float[Tensor, "#batch #heads q_seq kv_seq"]


class SDPACore(nn.Module):
    """`softmax(q kᵀ / √d_head + bias) v` by torch's fused kernels, linear in memory mostly."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Full | Causal | Dense, bias: Bias | None = None
    ) -> Queries:
        causal = isinstance(mask, Causal) and bias is None
        allowed = None if causal else _allowed(mask, q, k)
        if bias is not None and allowed is not None:
            allowed = bias.masked_fill(~allowed, float("-inf"))
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias if allowed is None else allowed,
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=q.shape[1] != k.shape[1],
        )


@config
class SDPACoreConfig:
    """torch's fused kernels."""

    kind: Literal["sdpa"] = "sdpa"

    def build(self, dropout: float) -> SDPACore:
        return SDPACore(dropout=dropout)


class EagerCore(nn.Module):
    """`softmax(q kᵀ / √d_head + bias) v` in plain products: the reference; it shows its weights."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.weights_dropout = Dropout(dropout)

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Full | Causal | Dense, bias: Bias | None = None
    ) -> Queries:
        weights = self.weights_dropout(self.weights(q, k, mask, bias))
        return weights @ _shared(v, q.shape[1])

    def weights(
        self, q: Queries, k: Keys, mask: Full | Causal | Dense, bias: Bias | None = None
    ) -> Float[Tensor, "batch heads q_seq kv_seq"]:
        """How much each query looks at each key: rows sum to one, or to zero if all is masked."""
        scores = functional.scaled_dot_scores(q, _shared(k, q.shape[1]))
        scores = scores if bias is None else scores + bias
        return functional.masked_softmax(scores, _allowed(mask, q, k))


@config
class EagerCoreConfig:
    """Plain products; on a CPU also the faster one where attention has dropout."""

    kind: Literal["eager"] = "eager"

    def build(self, dropout: float) -> EagerCore:
        return EagerCore(dropout=dropout)


CoreConfig = Annotated[SDPACoreConfig | EagerCoreConfig, Field(discriminator="kind")]
"""Every attention core there is."""


def _allowed(mask: Full | Causal | Dense, q: Queries, k: Keys) -> Tensor | None:
    """The evaluated mask as a tensor, or None where everything is allowed."""
    match mask:
        case Full():
            return None
        case Causal():
            return q.new_ones(q.shape[2], k.shape[2]).tril().bool()
        case Dense(allowed):
            return allowed


def _shared(kv: Keys, n_heads: int) -> Float[Tensor, "batch heads kv_seq d_head"]:
    """Each key/value head repeated for its group of query heads (Ainslie et al. 2023, GQA)."""
    repeats = n_heads // kv.shape[1]
    return kv if repeats == 1 else kv.repeat_interleave(repeats, dim=1)
