"""Equivalent models: the same function expressed with the parts that another family has.

A bias of zero adds nothing. And no layer knows the order of the features of hidden states: sines
before cosines, or both in turn, is one model with its weights in another order.
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
    """The model with a bias in every attention, feed-forward and norm layer."""
    names = ["attention", "cross_attention", "feedforward", "norm"]
    if isinstance(model, EncoderDecoderConfig):
        names += ["decoder_attention", "decoder_feedforward"]
    return replace(model, **{name: _with_bias(getattr(model, name)) for name in names})


def _with_bias(part: Any) -> Any:
    match part:
        case AttentionConfig():
            return replace(part, bias=True, out_bias=None)
        case FeedForwardConfig() | LayerNormConfig():
            return replace(part, bias=True)
        case _:
            return part


def with_split_sinusoids(model: ModelConfig) -> ModelConfig:
    """The model with split sinusoids (sines first), where both stacks interleave them."""
    if not isinstance(model, EncoderDecoderConfig):
        return model
    positions = (model.position, model.decoder_position or model.position)
    if not all(_is_interleaved(one) for one in positions):
        return model
    sinusoids = [one for one in positions if isinstance(one, SinusoidalConfig)]
    encoder, decoder = (replace(one, layout="halves") for one in sinusoids)
    return replace(model, position=encoder, decoder_position=decoder)


def transform_tensors(
    tensors: Mapping[str, Tensor],
    old: ModelConfig,
    new: ModelConfig,
    shapes: Mapping[str, torch.Size],
) -> dict[str, Tensor]:
    """Convert the tensors of `old` into those of its equivalent `new`, which have these shapes."""
    dtype = next(iter(tensors.values())).dtype
    order = None
    if _is_interleaved(old.position) and not _is_interleaved(new.position):
        order = torch.cat([torch.arange(0, old.d_model, 2), torch.arange(1, old.d_model, 2)])
    found: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name in tensors:
            found[name] = tensors[name] if order is None else _reordered(name, tensors[name], order)
        else:
            found[name] = torch.zeros(shape, dtype=dtype)
    return found


def _is_interleaved(position: PositionConfig) -> bool:
    return isinstance(position, SinusoidalConfig) and position.layout == "interleaved"


# The axis of the hidden states' features, by the part that a tensor is of; others have none.
ROWS = re.compile(r"(.*\.)?(out_proj|down_proj|norm)\.(weight|bias)")
COLUMNS = re.compile(r"(.*\.)?([qkv]_proj|up_proj|gate_proj|tokens|head)\.weight")


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    order = order.to(tensor.device)
    if ROWS.fullmatch(name):
        return tensor[order]
    return tensor[:, order] if COLUMNS.fullmatch(name) else tensor
