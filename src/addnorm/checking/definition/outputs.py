"""The definitions of operations on attention's output, `f(config, weights, heads, x)`.

`heads` are the outputs of the heads, each `[seq, d_head]`; `x` is the input of the queries.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights, linear, sigmoid
from addnorm.nn.attention import GatedOutputConfig


def gated(config: Any, weights: Weights, heads: Sequence[Tensor], x: Tokens) -> list[Tensor]:
    """Qiu et al. 2025, §2.2: a gate for each feature, or one for each head."""
    gates = sigmoid(linear(weights, "proj", x)).chunk(len(heads), dim=1)
    return [head * gate for head, gate in zip(heads, gates, strict=True)]


OUTPUTS = Definitions[Callable[[Any, Weights, Sequence[Tensor], Tokens], list[Tensor]]](
    "output", "outputs.py", {GatedOutputConfig: gated}
)


def after_heads(
    config: Any, weights: Weights, heads: Sequence[Tensor], x: Tokens
) -> Sequence[Tensor]:
    """Apply the operation, if there is one."""
    return heads if config is None else OUTPUTS.of(config)(config, weights, heads, x)
