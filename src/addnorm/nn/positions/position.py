"""Position: the three places where a scheme may act, each doing nothing unless a scheme says so."""

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.nn.context import Context

Embedded = Float[Tensor, "batch seq d_model"]
Queries = Float[Tensor, "batch heads q_seq d_head"]
Keys = Float[Tensor, "batch kv_heads kv_seq d_head"]


class Position(nn.Module):
    """A scheme overrides the hooks that it acts on; the others stay as they are here."""

    def embed(self, x: Embedded, ctx: Context) -> Embedded:
        """Act on the embeddings, before the first layer."""
        return x

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Act on the new tokens' queries and keys, before the keys enter a cache."""
        return q, k

    def score_bias(
        self, q: Queries, k: Keys, ctx: Context
    ) -> Float[Tensor, "#batch heads q_seq kv_seq"] | None:
        """What is added to the scores of `q` against all of `k`, or None."""
        return None

    def in_layer(self, layer: int) -> "Position":
        """The scheme as the attention of this layer holds it: itself, if it acts there at all."""
        return self
