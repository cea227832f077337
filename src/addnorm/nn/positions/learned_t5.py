"""Learned positions and T5's bias at once, as in MPNet."""

from typing import Any, Literal

from pydantic import PositiveInt

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.positions.learned import Learned
from addnorm.nn.positions.position import BuildContext, Position
from addnorm.nn.positions.t5 import T5Bias, T5BiasConfig
from addnorm.nn.types import Hidden


class LearnedT5(Position):
    """`x + table[p]` in the embedding, and `table_b[bucket(j - i)]` added to every layer's scores.

    Song et al. 2020 (MPNet), §2.3 and their code: both are those of `Learned` and `T5Bias`, and
    all layers share one table of biases.
    """

    def __init__(self, learned: Learned, bias: T5Bias) -> None:
        super().__init__()
        self.learned = learned
        self.bias = bias

    def embed(self, x: Hidden, ctx: Context) -> Hidden:
        return self.learned.embed(x, ctx)

    def in_layer(self, layer: int) -> Position:
        return self.bias

    @property
    def max_len(self) -> int:
        return self.learned.max_len


@config
class LearnedT5Config:
    """A table of the model's `max_len` rows, and `buckets` ranges of distance."""

    kind: Literal["learned_t5"] = "learned_t5"
    buckets: PositiveInt = 32
    """Ranges of distance that share a learned bias."""
    max_distance: PositiveInt = 128
    """Tokens from which on all distances share the last bucket."""

    def __post_init__(self) -> None:
        self._bias()

    def _bias(self) -> T5BiasConfig:
        return T5BiasConfig(buckets=self.buckets, max_distance=self.max_distance)

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Few buckets, so that short texts have ranges of several distances."""
        return {"learned_t5": cls(buckets=6, max_distance=5)}

    def build(self, build_context: BuildContext) -> LearnedT5:
        learned = Learned(build_context.max_len, build_context.d_model)
        return LearnedT5(learned, self._bias().build(build_context))
