"""Equivalent models: the same function, expressed with the parts that a family supports.

A zero bias has no effect. The order of hidden features does not matter either: sinusoidal positions
with sines before cosines or interleaved give the same model with permuted weights.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import PositionConfig, SinusoidalConfig


def with_biases(model: ModelConfig) -> ModelConfig:
    """Enable biases in every attention, feed-forward and norm layer."""
    for field in ("attention", "feedforward", "norm"):
        model = model.with_parts(field, _with_bias)
    return model


def _with_bias(part: Any) -> Any:
    match part:
        case AttentionConfig():
            return replace(part, bias=True, out_bias=None)
        case FeedForwardConfig() | LayerNormConfig():
            return replace(part, bias=True)
        case _:
            return part


def with_split_sinusoids(model: ModelConfig) -> ModelConfig:
    """Use split sinusoidal positions (sines first) if both stacks have interleaved ones."""
    if not isinstance(model, EncoderDecoderConfig):
        return model
    positions = (model.position, model.decoder_position or model.position)
    if not all(_is_interleaved(position) for position in positions):
        return model
    sinusoids = [position for position in positions if isinstance(position, SinusoidalConfig)]
    encoder, decoder = (replace(position, layout="halves") for position in sinusoids)
    return replace(model, position=encoder, decoder_position=decoder)


def transform_tensors(
    tensors: Mapping[str, Tensor],
    old: ModelConfig,
    new: ModelConfig,
    shapes: Mapping[str, torch.Size],
) -> dict[str, Tensor]:
    """Convert the tensors of `old` to those of the equivalent model `new`, given their shapes."""
    dtype = next(iter(tensors.values())).dtype
    order = None
    if _is_interleaved(old.position) and not _is_interleaved(new.position):
        order = torch.cat([torch.arange(0, old.d_model, 2), torch.arange(1, old.d_model, 2)])
    transformed: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name in tensors:
            tensor = tensors[name]
            transformed[name] = tensor if order is None else _reordered(name, tensor, order)
        else:
            transformed[name] = torch.zeros(shape, dtype=dtype)
    return transformed


def _is_interleaved(position: PositionConfig) -> bool:
    return isinstance(position, SinusoidalConfig) and position.layout == "interleaved"


# Tensors with hidden features on the first (rows) or last (columns) axis.
ROWS = re.compile(r"(.*\.)?(out_proj|down_proj|norm)\.(weight|bias)")
COLUMNS = re.compile(r"(.*\.)?([qkv]_proj|up_proj|gate_proj|tokens|head)\.weight")


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    order = order.to(tensor.device)
    if ROWS.fullmatch(name):
        return tensor[order]
    return tensor[:, order] if COLUMNS.fullmatch(name) else tensor
