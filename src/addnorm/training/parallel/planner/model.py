"""A model for arithmetic: the weights, products and saved values of each part."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """A weight as one process of `tensor` holds it: `rows` of `width` values.

    It is split along `axis`. Several processes hold the same one if `copies` is more than 1, each
    with a part of its gradient. `inner` is a linear layer in a stack, for which optimisers may have
    other states.
    """

    rows: int
    width: int
    copies: int = 1
    inner: bool = False
    axis: int = 0

    @property
    def size(self) -> int:
        """The number of values."""
        return self.rows * self.width

    def padded(self, processes: int) -> int:
        """The number of values in each process's shard, in whole rows including padding."""
        return -(-self.rows // processes) * self.width


@dataclass(frozen=True)
class Product:
    """A product of each token with a matrix; `share` is the average number of times per token."""

    d_in: int
    d_out: int
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention of the heads that one process has.

    `scores` is how many values are saved for each head, query and key: none by a fused kernel. With
    dropout of the weights that may differ `scores_on_cpu`. `bias` are values and `bias_bytes` bytes
    for each query and key that all rows share. `reach` is the number of keys of a query, None for
    all.
    """

    heads: int
    kv_heads: int
    d_head: int
    causal: bool
    scores: int = 0
    scores_on_cpu: int = 0
    bias: int = 0
    bias_bytes: int = 0
    reach: int | None = None
    cross: bool = False

    def keys(self, seq_len: int) -> int:
        """The number of keys that each query is multiplied with, masked or not."""
        return seq_len if self.reach is None else min(self.reach, seq_len)

    def allowed(self, seq_len: int) -> float:
        """The mean number of keys that a query may attend to."""
        keys = self.keys(seq_len)
        return keys - keys * (keys - 1) / (2 * seq_len) if self.causal else keys


@dataclass(frozen=True)
class Saved:
    """The values that the backward pass needs of each token.

    `stream` counts values in the type of the residual stream, `products` those in the type of
    products; `copies` are values that each of several products casts for itself, where the types
    differ, and `masks` values of dropout masks. `bytes` are statistics and indices. `positions` are
    float32 values of each position, which all rows share.
    """

    stream: float = 0.0
    products: float = 0.0
    copies: float = 0.0
    masks: float = 0.0
    bytes: float = 0.0
    positions: float = 0.0

    def __add__(self, other: "Saved") -> "Saved":
        values = zip(vars(self).values(), vars(other).values(), strict=True)
        return Saved(*(a + b for a, b in values))


@dataclass(frozen=True, eq=False)
class Part:
    """The embedding, a layer or the head in one of `tensor` processes; equal layers share one.

    `entered` and `left` are the values of a token whose gradients, or sums, the processes of
    `tensor` exchange: on the way back where a split part begins, and forward where one ends. Of
    those, `again` are exchanged once more where the layer is computed again.
    """

    weights: tuple[Weight, ...] = ()
    products: tuple[Product, ...] = ()
    attention: tuple[Attention, ...] = ()
    saved: Saved = Saved()
    entered: float = 0.0
    left: float = 0.0
    again: float = 0.0

    @property
    def size(self) -> int:
        """The number of values of all weights."""
        return sum(weight.size for weight in self.weights)

    def flops(self, seq_len: int) -> float:
        """The operations of a token's forward pass."""
        products = sum(2 * p.share * p.d_in * p.d_out for p in self.products)
        pairs = sum(4 * a.heads * a.d_head * a.keys(seq_len) for a in self.attention)
        return products + pairs


@dataclass(frozen=True, eq=False)
class ModelSizes:
    """The sizes of a model in one of `tensor` processes.

    `tied` are weights of the embedding that the head uses too, the last of its weights: a process
    that has both holds them once.
    `shared` are weights that several layers use. `logits` is the number of logits of a token in all
    processes together, 0 if the head has others.
    """

    d_model: int
    embed: Part
    layers: tuple[Part, ...]
    head: Part
    tied: tuple[Weight, ...] = ()
    shared: tuple[Weight, ...] = ()
    logits: int = 0

    def flops(self, seq_len: int) -> float:
        """The operations of a token's forward pass: of its products, and of attention to all keys.

        As in the definition of model FLOPs utilisation, masked keys count too (Chowdhery et al.
        2022, appendix B).
        """
        parts = Counter((self.embed, *self.layers, self.head))
        return sum(n * part.flops(seq_len) for part, n in parts.items())
