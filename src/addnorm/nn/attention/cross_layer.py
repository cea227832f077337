"""Cross-layer attention: a layer has queries of its own, and the keys and values of another."""

from typing import Any, ClassVar

from torch import nn

from addnorm.nn.attention.head_norms import HeadNorms
from addnorm.nn.attention.outputs import PlainOutput
from addnorm.nn.cache import NoCache
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions.position import Position
from addnorm.nn.splits import Split, Splits, heads_together
from addnorm.nn.types import Heads, HeadShape, Hidden, Keys, Queries


class CrossLayerAttention(nn.Module):
    """`core(rotate(norm(x W_q)), k, v, mask, score_bias)` with `k` and `v` of layer `reads`.

    Brandon et al. 2024 (arXiv 2405.12981), §3; Gemma 3n and 4. The keys are those after their norm
    and rotation, so that positions and pattern are those of the layer that is read. The cache holds
    them once.
    """

    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)
    splits: ClassVar[Splits] = {
        "q_proj": Split(0, "head_units"),
        "out_proj": Split(1, "head_units"),
    }

    def __init__(
        self,
        d_model: int,
        heads: HeadShape,
        *,
        reads: int,
        position: Position,
        core: nn.Module,
        pattern: Mask | None = None,
        norms: HeadNorms | None = None,
        **projections: Any,
    ) -> None:
        super().__init__()
        self.reads = reads
        """The layer whose keys and values are read, counted from 0."""
        self.n_kv_heads = heads.n_kv_heads
        self.d_head = heads.d_head
        bias, output = projections["bias"], projections["output"]
        self.q_proj = Linear(d_model, heads.n_heads * heads.d_head, bias=bias)
        width = heads.n_heads // heads_together(output) * heads.d_head
        self.out_proj = Linear(width, d_model, bias=projections["out_bias"])
        norms = norms or HeadNorms()
        self.q_norm = norms.build(heads.n_heads, heads.d_head)
        self.rotated_q_norm = norms.build_rotated(heads.d_head)
        self.core = core
        self.output = output or PlainOutput()
        self.position = position
        self.pattern = pattern or Full()

    @property
    def head_units(self) -> int:
        """The query heads, or the groups that the core or the output computes together."""
        together = max(heads_together(self.core), heads_together(self.output))
        return self.q_proj.out_features // (self.d_head * together)

    def forward(self, x: Hidden, ctx: Context, cache: NoCache | None = None) -> Hidden:
        if ctx.earlier is None:
            raise ValueError("cross-layer attention reads an earlier layer: run it in a stack")
        k, v = ctx.earlier.read(ctx.within)
        heads = self.attend(self.queries(x, ctx), k, v, ctx)
        return self.merge(self.output(heads, x))

    def queries(self, x: Hidden, ctx: Context) -> Queries:
        """The queries of every head, rotated, and normalised before or after it."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2))
        q, _ = self.position.rotate(q, q[:, :1], ctx)  # keys were rotated in their layer
        return q if self.rotated_q_norm is None else self.rotated_q_norm(q)

    def attend(self, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Attend from the new tokens to all keys and values within reach."""
        q, k = self.position.rotate_all(q, k, ctx)
        return self.core(q, k, v, ctx.mask, self.position.score_bias(q, ctx))

    def merge(self, heads: Heads) -> Hidden:
        """`concat(heads) W_o`."""
        return self.out_proj(heads.transpose(1, 2).flatten(-2))

    def remember(self, x: Hidden, ctx: Context, cache: NoCache) -> None:
        """Store nothing for later tokens: the layer that is read has stored its keys."""

    def new_cache(self) -> NoCache:
        """No cache: the layer that is read has one."""
        return NoCache()
