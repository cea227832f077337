"""The place of a sublayer in a model, on which the initial values of some placements depend."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The depths of the model's stacks, and the stack and layer being built."""

    encoder: int = 0
    decoder: int = 0
    causal: bool = False
    """Whether the stack is the decoder."""
    layer: int = 0
    """The index of the layer in its stack, from 0."""
    sublayer: int = 0
    """The index of the sublayer in its stack, from 0."""
    ends_layer: bool = False
    """Whether the sublayer is the last of its layer."""

    @property
    def n_layers(self) -> int:
        """The number of layers of the stack being built."""
        return self.decoder if self.causal else self.encoder
