"""KVCache: the keys and values of tokens already read, so that decoding never reads them again."""

from collections.abc import Callable, Iterator

from jaxtyping import Float, Int
from torch import Tensor

Held = Float[Tensor, "batch kv_heads kv_seq d_head"]
KeysValues = tuple[Held, Held]


class SelfCache:
    """One layer's keys and values in a contiguous buffer that doubles when it is full."""

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []

    def append(
        self,
        k: Float[Tensor, "batch kv_heads seq d_head"],
        v: Float[Tensor, "batch kv_heads seq d_head"],
    ) -> KeysValues:
        """Store the new keys and values; return all so far, as views."""
        end = self.length + k.shape[2]
        if not self._buffers or end > self._buffers[0].shape[2]:
            self._buffers = [self._grown(i, new, end) for i, new in enumerate((k, v))]
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer[:, :, self.length : end] = new
        self.length = end
        return self._buffers[0][:, :, :end], self._buffers[1][:, :, :end]

    def _grown(self, i: int, new: Tensor, end: int) -> Tensor:
        batch, heads, _, width = new.shape
        buffer = new.new_empty(batch, heads, max(16, 2 * self.length, end), width)
        if self._buffers:
            buffer[:, :, : self.length] = self._buffers[i][:, :, : self.length]
        return buffer

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order, repeats allowed."""
        self._buffers = [buffer.index_select(0, rows) for buffer in self._buffers]


class CrossCache:
    """One layer's keys and values of the memory, projected at the first step only."""

    def __init__(self) -> None:
        self._kept: KeysValues | None = None

    def once(self, project: Callable[[], KeysValues]) -> KeysValues:
        """The kept keys and values, or those of `project()` the first time."""
        if self._kept is None:
            self._kept = project()
        return self._kept

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order, repeats allowed."""
        if self._kept is not None:
            k, v = self._kept
            self._kept = (k.index_select(0, rows), v.index_select(0, rows))


class LayerCache:
    """What one block keeps: its own tokens, and the memory where it has cross-attention."""

    def __init__(self) -> None:
        self.own = SelfCache()
        self.memory = CrossCache()


class KVCache:
    """The caches of all layers; one argument of `forward`, filled as it runs."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Slots held so far."""
        return self.layers[0].own.length

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows in every layer, so that the cache follows the surviving beams."""
        for layer in self.layers:
            layer.own.select(rows)
            layer.memory.select(rows)
