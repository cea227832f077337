"""Quantisation: weights in fewer bits, which saves memory and memory bandwidth."""

from typing import Literal, get_args

from addnorm.errors import InputError, check_choice
from addnorm.models import Model
from addnorm.quantize.layers import (
    ActivationsConfig,
    DynamicConfig,
    StaticConfig,
    WeightsOnlyConfig,
)
from addnorm.quantize.model import (
    Int4Config,
    Int8Config,
    QuantizationConfig,
    dequantize,
    is_calibrated,
    is_quantized,
    quantize,
    quantize_int8,
)

Weights = Literal["bfloat16", "int8"]
"""The dtypes to which weights can be converted."""


def with_weights(model: Model, kind: Weights) -> Model:
    """Convert the model's weights in place.

    Raises `InputError` for another kind, and if they are quantised.
    """
    check_choice("weights", kind, get_args(Weights))
    if is_quantized(model):
        raise InputError(f"weights = {kind!r}: the model is quantised already")
    return model.bfloat16() if kind == "bfloat16" else quantize_int8(model)


__all__ = [
    "ActivationsConfig",
    "DynamicConfig",
    "Int4Config",
    "Int8Config",
    "QuantizationConfig",
    "StaticConfig",
    "Weights",
    "WeightsOnlyConfig",
    "dequantize",
    "is_calibrated",
    "is_quantized",
    "quantize",
    "quantize_int8",
    "with_weights",
]
