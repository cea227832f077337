"""Multi-head self- and cross-attention; the number of key/value heads gives MHA, GQA or MQA."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.attention.core import NOT_FUSED, EagerCoreConfig, SDPACoreConfig
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.attention.head_norms import HeadNorms, Over
from addnorm.nn.attention.kernels import shared
from addnorm.nn.attention.outputs import OutputConfig, PlainOutput, build_output
from addnorm.nn.attention.patterns import FullPatternConfig, PatternConfig, build_pattern
from addnorm.nn.attention.scores import ScaledDotConfig, ScoreConfig, build_score, is_fused
from addnorm.nn.attention.sinks import SinkCoreConfig
from addnorm.nn.attention.value_residual import (
    ValueResidual,
    ValueResidualName,
    build_value_residual,
)
from addnorm.nn.built import built_module
from addnorm.nn.cache import AttentionCache, MemoryCache, MemoryKeys, SelfCache
from addnorm.nn.context import Context, Memory
from addnorm.nn.linear import Linear, linears
from addnorm.nn.masks import Evaluated, Full, Mask
from addnorm.nn.norms import BatchNormConfig, NormConfig
from addnorm.nn.positions.position import Position
from addnorm.nn.splits import Split, Splits, heads_together
from addnorm.nn.types import Heads, HeadShape, Hidden, Keys, KeysValues, Queries, divisors
from addnorm.parts import Family, check_conflicts


class MultiHead(nn.Module):
    """Base class of self- and cross-attention: the projections into heads and back.

    `q = x W_q`, `k = y W_k`, `v = y W_v`, `out = concat(heads) W_o` (Vaswani et al. 2017, §3.2.2);
    each key/value head serves `n_heads / n_kv_heads` query heads (Ainslie et al. 2023). By `norms`,
    queries and keys are normalised (Henry et al. 2020), over each head or over all heads of a token
    together, and the values of each head. `output` acts on the heads before `W_o`.
    """

    output_weights = ("out_proj",)
    deepnorm_weights = ("v_proj", "out_proj")
    splits: ClassVar[Splits] = {
        "q_proj": Split(0, "head_units"),
        "k_proj": Split(0, "kv_head_units", copied=True),
        "v_proj": Split(0, "kv_head_units", copied=True),
        "out_proj": Split(1, "head_units"),
    }

    def __init__(
        self,
        d_model: int,
        heads: HeadShape,
        *,
        core: nn.Module,
        bias: bool = True,
        out_bias: bool = True,
        norms: HeadNorms | None = None,
        output: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.d_head = heads.d_head
        self.q_proj = Linear(d_model, heads.n_heads * heads.d_head, bias=bias)
        self.k_proj = Linear(d_model, heads.n_kv_heads * heads.d_head, bias=bias)
        self.v_proj = Linear(d_model, heads.n_kv_heads * heads.d_head, bias=bias)
        width = heads.n_heads // heads_together(output) * heads.d_head
        self.out_proj = Linear(width, d_model, bias=out_bias)
        norms = norms or HeadNorms()
        self.q_norm = norms.build(heads.n_heads, heads.d_head)
        self.k_norm = norms.build(heads.n_kv_heads, heads.d_head)
        self.v_norm = norms.build_values(heads.d_head)
        self.core = core
        self.output = output or PlainOutput()

    @property
    def head_units(self) -> int:
        """The query heads, or the groups that the core or the output computes together."""
        together = max(heads_together(self.core), heads_together(self.output))
        return self.q_proj.out_features // (self.d_head * together)

    @property
    def kv_head_units(self) -> int:
        """The key/value heads, or the groups of them that the core computes together."""
        return self.k_proj.out_features // (self.d_head * heads_together(self.core))

    @property
    def n_kv_heads(self) -> int:
        """The heads of keys and values."""
        return self.k_proj.out_features // self.d_head

    def for_query_heads(self, k: Keys, n_heads: int) -> Heads:
        """The keys that each of `n_heads` query heads is compared with by the core."""
        return shared(k, n_heads, together=heads_together(self.core))

    def queries(self, x: Hidden) -> Heads:
        """The queries of every head, `norm(x W_q)`."""
        return self.q_norm(self.split(self.q_proj(x)))

    def keys(self, y: Float[Tensor, "batch kv_seq d_model"]) -> Heads:
        """The keys of every key/value head, `norm(y W_k)`."""
        return self.k_norm(self.split(self.k_proj(y)))

    def keys_values(self, y: Float[Tensor, "batch kv_seq d_model"]) -> KeysValues:
        """The keys and values of every key/value head, `norm(y W_k)` and `y W_v` or its norm."""
        k, v = map(self.split, linears(y, (self.k_proj, self.v_proj)))
        return self.k_norm(k), v if self.v_norm is None else self.v_norm(v)

    def queries_keys_values(self, x: Hidden) -> tuple[Queries, Keys, Keys]:
        """The queries, keys and values of the same tokens."""
        q, k, v = map(self.split, linears(x, (self.q_proj, self.k_proj, self.v_proj)))
        v = v if self.v_norm is None else self.v_norm(v)
        return self.q_norm(q), self.k_norm(k), v

    def split(self, x: Float[Tensor, "batch seq width"]) -> Heads:
        """Split the last axis into heads."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def merge(self, heads: Heads) -> Hidden:
        """`concat(heads) W_o`."""
        return self.out_proj(heads.transpose(1, 2).flatten(-2))


def tie_values(attention: MultiHead) -> None:
    """Make the value projection use the weights of the key projection (Gemma 4, Google 2026).

    Their norms and the rotation still differ. Both are computed, each by itself.
    """
    attention.v_proj.weight = attention.k_proj.weight
    attention.v_proj.bias = attention.k_proj.bias


def has_tied_values(attention: MultiHead) -> bool:
    """Whether values and keys are projected by the same weights."""
    return attention.v_proj.weight is attention.k_proj.weight


class SelfAttention(MultiHead):
    """`core(rotate(q), rotate(k), v, mask, score_bias)`: a sequence attends to itself.

    Vaswani et al. 2017, §3.2.

    `pattern` is the mask that this layer adds to that of the pass. `norms` may also be of rotated
    queries and keys. With a `value_residual`, `v` is a sum of these values and the first layer's.
    """

    def __init__(
        self,
        d_model: int,
        heads: HeadShape,
        *,
        position: Position,
        pattern: Mask | None = None,
        norms: HeadNorms | None = None,
        value_residual: ValueResidual | None = None,
        **projections: Any,
    ) -> None:
        super().__init__(d_model, heads, norms=norms, **projections)
        self.position = position
        self.pattern = pattern or Full()
        norms = norms or HeadNorms()
        self.rotated_q_norm = norms.build_rotated(heads.d_head)
        self.rotated_k_norm = norms.build_rotated(heads.d_head)
        self.value_residual = value_residual

    @property
    def reads(self) -> int | None:
        """The earlier layer that this one reads, counted from 0: the first for its values."""
        return None if self.value_residual is None else 0

    def forward(self, x: Hidden, ctx: Context, cache: AttentionCache | None = None) -> Hidden:
        y = x if cache is None else cache.source(x, ctx.within)
        q, k, v = self.queries_keys_values(x) if y is x else (self.queries(x), *self.keys_values(y))
        (q, k), v = self.rotated(q, k, ctx), self.with_first(v, ctx)
        heads = self.attend(q, k, v, ctx) if cache is None else cache.attend(self, q, k, v, ctx)
        return self.merge(self.output(heads, x))

    def rotated(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Rotate queries and keys by their positions; then apply the norms of rotated ones."""
        q, k = self.position.rotate(q, k, ctx)
        if self.rotated_q_norm is None or self.rotated_k_norm is None:
            return q, k
        return self.rotated_q_norm(q), self.rotated_k_norm(k)

    def with_first(self, v: Heads, ctx: Context) -> Heads:
        """The values, mixed with the first layer's if there is a value residual."""
        if self.value_residual is None:
            return v
        if ctx.earlier is None:
            raise ValueError("a value residual reads the first layer: run it in a stack")
        return self.value_residual(v, ctx.earlier.read(v.shape[2])[1])

    def attend(self, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Attend from the new tokens to all keys and values within reach."""
        q, k = self.position.rotate_all(q, k, ctx)
        return self.core(q, k, v, ctx.mask, self.position.content_bias(q, k, ctx, self))

    def remember(self, x: Hidden, ctx: Context, cache: AttentionCache) -> None:
        """Store the keys and values of `x` in the cache for later tokens; attend to nothing."""
        k, v = self.keys_values(cache.source(x, ctx.within))
        heads = self.q_proj.out_features // self.d_head
        unused = k.new_zeros(x.shape[0], heads, x.shape[1], self.d_head)
        cache.append(self.rotated(unused, k, ctx)[1], self.with_first(v, ctx), ctx.within)

    def new_cache(self) -> SelfCache:
        """An empty cache, which keeps the slots that later tokens can reach."""
        return SelfCache()


class CrossAttention(MultiHead):
    """Cross-attention: queries from the sequence, keys and values from `ctx.memory`.

    Where consecutive rows share one memory, as the beams of a sentence do, their queries are
    concatenated, so that the memory is read only once for all of them.
    """

    def forward(self, x: Hidden, ctx: Context, cache: MemoryCache | None = None) -> Hidden:
        if (memory := ctx.memory) is None:
            raise ValueError("cross-attention needs a memory: build the context with `attending`")
        q = self.queries(x)
        if cache is None:
            heads = self.attend(q, *self.remember(memory), memory.mask)
        else:
            heads = cache.attend(self, q, memory)
        return self.merge(self.output(heads, x))

    def remember(self, memory: Memory) -> KeysValues:
        """Project the memory to keys and values."""
        return self.keys_values(memory.hidden)

    def attend(self, q: Queries, k: MemoryKeys, v: MemoryKeys, mask: Evaluated) -> Heads:
        """Attend to the keys and values of the memories, each shared by consecutive rows."""
        n = k.shape[0]
        return unfold_beams(self.core(fold_beams(q, n), k, v, mask), q.shape[0])


Attending = MultiHead | CrossLayerAttention
"""Attention with queries of several heads, and a core."""


def fold_beams(
    q: Float[Tensor, "rows heads seq d_head"], n: int
) -> Float[Tensor, "memories heads side_by_side d_head"]:
    """Concatenate the queries of the beams that share one of `n` memories into one row."""
    return q if q.shape[0] == n else q.unflatten(0, (n, -1)).transpose(1, 2).flatten(2, 3)


def unfold_beams(
    mixed: Float[Tensor, "memories heads side_by_side d_head"], rows: int
) -> Float[Tensor, "rows heads seq d_head"]:
    """Undo `fold_beams`: split the queries again into `rows` rows."""
    if (n := mixed.shape[0]) == rows:
        return mixed
    return mixed.unflatten(2, (rows // n, -1)).transpose(1, 2).flatten(0, 1)


@runtime_checkable
class CorePart(Protocol):
    """A configuration of an attention core.

    The module it builds is called as `core(q, k, v, mask, bias)` (see `core`): `q` is `[batch,
    heads, q_seq, d_head]`, `k` and `v` are `[batch, kv_heads, kv_seq, d_head]`, `mask` is an
    `Evaluated`, and `bias` a `Bias` or None; it returns the shape of `q`. It keeps the score as its
    attribute `score`. A method `weights(q, k, mask, bias)` returns the attention weights, `[batch,
    heads, q_seq, kv_seq]`, for inspection. `layer` counts from 0.
    """

    def build(
        self, heads: HeadShape, score: nn.Module, dropout: float, layer: int
    ) -> nn.Module: ...


CoreConfig = Annotated[
    SDPACoreConfig
    | FlexCoreConfig
    | EagerCoreConfig
    | DifferentialCoreConfig
    | SinkCoreConfig
    | CorePart,
    Family("core", CorePart),
]
"""Any attention core, built-in or custom."""


def build_core(
    core: CoreConfig, heads: HeadShape, score: nn.Module, dropout: float, layer: int
) -> nn.Module:
    """The core of a layer. Raises `InputError` if a custom part builds none."""
    q = torch.zeros(2, heads.n_heads, 3, heads.d_head)
    k = torch.zeros(2, heads.n_kv_heads, 3, heads.d_head)
    made = core.build(heads, score, dropout, layer)
    return built_module(core, made, "core(q, k, v, mask, bias)", (q, k, k, Full(), None), q.shape)


A = TypeVar("A", bound=MultiHead)

FUSED_CORES = (SDPACoreConfig, FlexCoreConfig, DifferentialCoreConfig, SinkCoreConfig)


@config
class AttentionConfig:
    """Attention with `n_heads` heads; `n_kv_heads` = `n_heads` is MHA, 1 is MQA, between is GQA."""

    kind: Literal["attention"] = "attention"
    n_heads: PositiveInt = 8
    """Heads of the queries."""
    n_kv_heads: PositiveInt | None = None
    """Heads of keys and values: as many as queries is MHA (the default), 1 is MQA, between is
    GQA.
    """
    d_head: PositiveInt | None = None
    """The width of a head; by default d_model / n_heads."""
    bias: bool = True
    """Whether the projections of queries, keys and values have a bias."""
    out_bias: bool | None = None
    """Whether the output projection has a bias; by default as `bias`."""
    dropout: Probability = 0.0
    """The dropout rate of the attention weights."""
    qk_norm: NormConfig | None = None
    """A norm of queries and keys; by default none."""
    qk_norm_over: Over = "head"
    """Whether `qk_norm` normalises each head by itself, or all heads of a token together, as in
    OLMo 2.
    """
    qk_norm_after: Literal["projection", "rotation"] = "projection"
    """Whether `qk_norm` stands before or after the rotation by positions."""
    v_norm: NormConfig | None = None
    """A norm over each head of values; by default none."""
    score: ScoreConfig = ScaledDotConfig()
    """How well a key fits a query."""
    pattern: PatternConfig = FullPatternConfig()
    """The mask of self-attention, within the causal mask where there is one."""
    core: CoreConfig | None = None
    """What computes attention; by default torch's fused kernels, or the eager core where none
    knows the score.
    """
    output: OutputConfig | None = None
    """An operation on the heads before the output projection; by default none."""
    values: Literal["projected", "keys"] = "projected"
    """Whether values are projected by weights of their own, or by those of the keys."""
    value_residual: ValueResidualName | None = None
    """A sum of the values of each layer after the first with the first layer's: their mean, with
    two learned factors, or with factors λ and 1 - λ; by default none.
    """
    kv_layers_back: PositiveInt | None = None
    """How many layers back the layer is whose keys and values this one reads, in place of its own
    (cross-layer attention); by default it has its own.
    """

    def __post_init__(self) -> None:
        if isinstance(self.core, FUSED_CORES) and not is_fused(self.score):
            raise ValueError(NOT_FUSED)
        for name, norm in (("qk_norm", self.qk_norm), ("v_norm", self.v_norm)):
            if isinstance(norm, BatchNormConfig):
                raise ValueError(f"{name} normalises each head of each token: batchnorm cannot")
        if (self.qk_norm_over, self.qk_norm_after) == ("heads", "rotation"):
            raise ValueError(
                'qk_norm_over = "heads" stands before the rotation: qk_norm_after = "projection"'
            )
        changed = self.value_residual is not None or self.values == "keys"
        if changed and self.kv_layers_back is not None:
            name = "values" if self.value_residual is None else "value_residual"
            raise ValueError(
                f"{name} changes a layer's own values, and with kv_layers_back it has none: give "
                "one of the two"
            )

    def of_memory(self) -> "AttentionConfig":
        """This configuration for attention to a memory, without fields that read earlier layers."""
        if self.value_residual is None and self.kv_layers_back is None:
            return self
        return replace(self, value_residual=None, kv_layers_back=None)

    def reads(self, layer: int) -> int | None:
        """The layer whose keys or values this layer reads; None if it reads no other layer."""
        if self.kv_layers_back is not None:
            return layer - self.kv_layers_back
        return 0 if self.value_residual is not None and layer > 0 else None

    def build(
        self, d_model: int, position: Position, causal: bool, layer: int = 0
    ) -> SelfAttention | CrossLayerAttention:
        parts = self.build_parts(d_model, layer)
        if self.qk_norm is not None and self.qk_norm_after == "rotation":
            _check_rotates_once(position)
            parts["norms"] = HeadNorms(rotated=self.qk_norm, values=self.v_norm)
        parts |= {"position": position, "pattern": build_pattern(self.pattern)}
        heads, reads = self.heads(d_model), self.reads(layer)
        if self.kv_layers_back is not None and reads is not None:
            _check_reads_no_projections(position)
            return CrossLayerAttention(d_model, heads, reads=reads, **parts)
        if self.value_residual is not None and layer > 0:
            parts["value_residual"] = build_value_residual(self.value_residual)
        return self._tied(SelfAttention(d_model, heads, **parts))

    def build_cross(self, d_model: int, layer: int = 0) -> CrossAttention:
        parts = self.build_parts(d_model, layer)
        return self._tied(CrossAttention(d_model, self.heads(d_model), **parts))

    def _tied(self, attention: A) -> A:
        """Tie the value weights of `attention` to its key weights, if so configured."""
        if self.values == "keys":
            tie_values(attention)
        return attention

    def build_parts(self, d_model: int, layer: int) -> dict[str, Any]:
        """The constructor arguments that self- and cross-attention share."""
        heads = self.heads(d_model)
        core = self.core or (SDPACoreConfig() if is_fused(self.score) else EagerCoreConfig())
        score, output = build_score(self.score, heads), self.output
        return {
            "core": build_core(core, heads, score, self.dropout, layer),
            "bias": self.bias,
            "out_bias": self.bias if self.out_bias is None else self.out_bias,
            "norms": HeadNorms(projected=self.qk_norm, over=self.qk_norm_over, values=self.v_norm),
            "output": None if output is None else build_output(output, d_model, heads, layer),
        }

    def width(self, d_model: int) -> int:
        """The width of a head's queries and keys."""
        return self.heads(d_model).d_head

    def heads(self, d_model: int) -> HeadShape:
        """The head counts and head width for `d_model`. Raises `ValueError` on a mismatch."""
        if self.d_head is None and d_model % self.n_heads:
            raise ValueError(
                f"d_model = {d_model} does not divide into n_heads = {self.n_heads}: "
                f"n_heads must be one of {divisors(d_model)}, or d_head must be given"
            )
        heads = HeadShape(
            self.n_heads, self.n_kv_heads or self.n_heads, self.d_head or d_model // self.n_heads
        )
        check_conflicts([self.core, self.output], heads)
        return heads


def _check_reads_no_projections(position: Position) -> None:
    """Raise `InputError` for positions that need the key projection of their own layer."""
    if type(position).content_bias is not Position.content_bias:
        raise InputError(
            f"{type(position).__name__} positions read the projections of keys, and a layer with "
            "kv_layers_back has none: give it other positions"
        )


def _check_rotates_once(position: Position) -> None:
    """Raise `InputError` for positions that rotate cached keys again for each text length."""
    if type(position).rotate_all is not Position.rotate_all:
        raise InputError(
            'qk_norm_after = "rotation" normalises keys once, and these positions rotate them '
            "again when a text grows: give rotary positions another scaling than dynamic or "
            "longrope"
        )
