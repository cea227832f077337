"""Per-layer embeddings: every layer gets a vector of each token from a table of its own."""

from typing import ClassVar

from jaxtyping import Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.linear import Linear
from addnorm.nn.norms import NormConfig, build_norm
from addnorm.nn.splits import Splits
from addnorm.nn.types import Hidden

LayerVectors = Float[Tensor, "batch seq layers_width"]
"""The vectors of all layers, side by side."""

LayerVector = Float[Tensor, "batch seq width"]
"""The vector of each token for one layer."""


class PerLayerEmbedding(nn.Module):
    """`p_l = (norm(x W_l / √d) + √e E_l[t]) / √2`: vectors of width `e` for every layer `l`.

    Gemma 3n and 4 (Google 2025, 2026). `t` is the token and `x` its embedding, of width `d`; all
    layers share the norm. The vectors of all layers are returned side by side.
    """

    splits: ClassVar[Splits] = {}

    def __init__(
        self, vocab_size: int, d_model: int, width: int, n_layers: int, norm: nn.Module
    ) -> None:
        super().__init__()
        self.width = width
        self.tokens = nn.Embedding(vocab_size, n_layers * width)
        self.proj = Linear(d_model, n_layers * width, bias=False)
        self.norm = norm

    def forward(self, tokens: Int[Tensor, "batch seq"], x: Hidden) -> LayerVectors:
        of_state = (self.proj(x) * x.shape[-1] ** -0.5).unflatten(-1, (-1, self.width))
        of_token = self.tokens(tokens).unflatten(-1, (-1, self.width)) * self.width**0.5
        return ((self.norm(of_state) + of_token) * 2**-0.5).flatten(-2)


class PerLayerInput(nn.Module):
    """`(act(x W_g) ⊙ p) W_o`: the contribution of the layer's own vector `p` of each token.

    Gemma 3n and 4: the gate reads the residual stream, without a norm.
    """

    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    def __init__(self, d_model: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.width = width
        self.gate_proj = Linear(d_model, width, bias=False)
        self.out_proj = Linear(width, d_model, bias=False)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Hidden, vector: LayerVector) -> Hidden:
        return self.out_proj(self.activation(self.gate_proj(x)) * vector)


@config
class PerLayerEmbeddingConfig:
    """A vector of each token for every layer, gated by the layer's states (Gemma 3n and 4)."""

    width: PositiveInt = 256
    """The width of the vectors."""
    activation: Activation = "gelu_tanh"
    """The activation function of the gate."""

    def build(
        self, vocab_size: int, d_model: int, n_layers: int, norm: NormConfig
    ) -> PerLayerEmbedding:
        return PerLayerEmbedding(
            vocab_size, d_model, self.width, n_layers, build_norm(norm, self.width)
        )

    def build_input(self, d_model: int) -> PerLayerInput:
        """The sublayer of one layer."""
        return PerLayerInput(d_model, self.width, self.activation)
