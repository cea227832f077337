"""Quantisation: weights in fewer bits, which are read faster."""

from typing import Literal

from addnorm.models import Model
from addnorm.quantize.int8 import quantize_int8

Weights = Literal["bfloat16", "int8"]
"""What the weights of a model can be kept in besides the type that they were trained in."""


def with_weights(model: Model, kind: Weights) -> Model:
    """The model with its weights in this type from now on; changed in place."""
    return model.bfloat16() if kind == "bfloat16" else quantize_int8(model)


__all__ = ["Weights", "quantize_int8", "with_weights"]
