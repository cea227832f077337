"""Rules for computing each weight of the new model from those of the old one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from addnorm.convert.core.family import embedding_of
from addnorm.convert.transfer.folding import Weights, position_of
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.models.layers import LayerParts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.kernels import shared
from addnorm.nn.attention.multihead import HeadShape
from addnorm.nn.norms import (
    BatchNormConfig,
    LayerNormConfig,
    NormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
)
from addnorm.nn.positions import (
    LearnedConfig,
    PositionConfig,
    SinusoidalConfig,
    sinusoidal_encoding,
)
from addnorm.nn.splits import heads_together

Kind = Literal["exact", "folded", "derived", "new"]


@dataclass(frozen=True)
class Origin:
    """The origin of a weight, and how it was computed."""

    kind: Kind
    how: str = ""


@dataclass
class TransferContext:
    """Both configurations, and the old weights by their names in the new model."""

    old: ModelConfig
    new: ModelConfig
    source: Weights
    start: Weights
    """The initial weights of the new model."""
    layers: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """For each stack, the old layer that each new layer comes from; by default the same."""
    used: set[str] = field(default_factory=set[str])

    def old_name(self, name: str) -> str:
        """The name in the old model of a weight of the new one."""
        match = re.match(r"(\w+)\.blocks\.(\d+)\.", name)
        if match is None or match[1] not in self.layers:
            return name
        return f"{match[1]}.blocks.{self.layers[match[1]][int(match[2])]}.{name[match.end() :]}"

    def source_weight(self, name: str) -> Tensor | None:
        """The old weight with this name; for an expert, perhaps the dense layer's."""
        for old in (name, re.sub(r"\.experts\.\d+\.", ".", name)):
            if old in self.source:
                self.used.add(old)
                return self.source[old]
        return None


RuleResult = tuple[Tensor, Origin] | None
"""A weight and its origin, or None if the rule does not apply."""


def transfer_weight(context: TransferContext, name: str) -> tuple[Tensor, Origin]:
    """Compute the new model's weight with this name, by the first rule that applies."""
    for rule in RULES:
        if (result := rule(context, name)) is not None:
            return result
    return context.start[name], Origin("new")


def _gain(context: TransferContext, name: str) -> RuleResult:
    """The γ of a norm of another kind: kept, or converted to or from an offset from one."""
    match = re.fullmatch(rf"(?:.*\.)?({NORM_NAMES})\.weight", name)
    kinds = (None, None)
    if match:
        kinds = norm_of(context.old, context.old_name(name)), norm_of(context.new, name)
    if not all(isinstance(norm, GAINS) for norm in kinds):
        return None
    offsets = [gain_offset(norm) for norm in kinds]
    if type(kinds[0]) is type(kinds[1]) and offsets[0] == offsets[1]:
        return None
    if offsets[0] is None:
        return context.start[name], Origin("exact", "a gain of one")
    if (x := context.source_weight(name)) is None or x.shape != context.start[name].shape:
        return None
    by = offsets[0] - (offsets[1] or 0.0)
    same = all(isinstance(norm, RMSNormConfig | OffsetRMSNormConfig) for norm in kinds)
    how = f"γ {'+' if by > 0 else '-'} 1" if by else "γ kept"
    return x + by if by else x, Origin("folded" if same else "derived", how)


NORM_NAMES = "norm|norm_in|norm_out|q_norm|k_norm|v_norm|rotated_q_norm|rotated_k_norm"
"""The names of norms in a model."""

GAINS = (LayerNormConfig, RMSNormConfig, OffsetRMSNormConfig, BatchNormConfig)


def gain_offset(norm: NormConfig | None) -> float | None:
    """The number added to the stored γ of a norm: one or zero; None for a norm without γ."""
    gain = getattr(norm, "gain", "learned")
    if gain == "none":
        return None
    return float(isinstance(norm, OffsetRMSNormConfig) or gain == "offset")


def norm_of(model: ModelConfig, name: str) -> NormConfig | None:
    """The configuration of the norm that a weight belongs to."""
    layer = layer_of(model, name)
    if match := re.search(r"\.(rotated_)?([qkv])_norm\.", name):
        attention = _attention_of(model, name)
        if attention is None:
            return None
        return attention.v_norm if match[2] == "v" else attention.qk_norm
    if ".transform.norm." in name:
        transform = getattr(model.head, "transform", None)
        return None if transform is None else transform.norm
    if not re.match(r"(\w+_)?embed\.norm\.", name):
        return model.norm if layer is None else layer.norm
    return embedding_of(model).norm


def layer_of(model: ModelConfig, name: str) -> LayerParts | None:
    """The layer that a weight belongs to; None for a weight outside the layers."""
    match = re.match(r"(\w+)\.blocks\.(\d+)\.", name)
    if match is None:
        return None
    if isinstance(model, EncoderDecoderConfig) and match[1] == "decoder":
        model = model.decoder_parts
    return model.layer(int(match[2]))


def _attention_of(model: ModelConfig, name: str) -> AttentionConfig | None:
    layer = layer_of(model, name)
    if layer is None:
        return None
    mixer = layer.cross_attention if ".cross_attention." in name else layer.attention
    return mixer if isinstance(mixer, AttentionConfig) else None


def _position(context: TransferContext, name: str) -> RuleResult:
    """A position table: extended, truncated, or filled with sinusoidal encodings."""
    if ".position." not in name:
        return None
    old = _position_of(context.old, context.old_name(name))
    new, start = _position_of(context.new, name), context.start[name]
    if isinstance(old, SinusoidalConfig) and isinstance(new, LearnedConfig):
        n, width = start.shape
        places = torch.arange(n) + old.first
        sines = sinusoidal_encoding(places, width, old.theta, start.dtype, old.layout)
        return sines.to(start.device), Origin("exact", f"the sines of {n} positions")
    x = context.source_weight(name) if type(old) is type(new) else None
    if x is None:
        return start, Origin("new")
    if not isinstance(new, LearnedConfig) or x.shape[1:] != start.shape[1:] or len(x) == len(start):
        return None
    if len(start) < len(x):
        return x[: len(start)], Origin("exact", f"the first {len(start)} of {len(x)} rows")
    rows = torch.arange(len(start), device=x.device) % len(x)
    how = f"{len(x)} rows kept, then repeated (Beltagy et al. 2020, §5)"
    return x[rows], Origin("exact", how)


def _position_of(model: ModelConfig, name: str) -> PositionConfig:
    layer = layer_of(model, name)
    return position_of(model, name) if layer is None else layer.position


def _unchanged(context: TransferContext, name: str) -> RuleResult:
    """A weight with the same name and shape, kept unchanged."""
    x = context.source_weight(name)
    if x is None or x.shape != context.start[name].shape:
        return None
    copied = "experts" in name and name not in context.source
    how = "a copy of the one layer (Komatsuzaki et al. 2023, §3)" if copied else ""
    return x, Origin("exact", how)


def _heads(context: TransferContext, name: str) -> RuleResult:
    """Key/value heads: averaged by group, or repeated (Ainslie et al. 2023, §2.1)."""
    old_name = context.old_name(name)
    old_attention = _attention_of(context.old, old_name)
    new_attention = _attention_of(context.new, name)
    x = context.source_weight(name) if re.search(r"\.[kv]_proj\.(weight|bias)$", name) else None
    if x is None or old_attention is None or new_attention is None:
        return None
    old = old_attention.heads(context.old.d_model)
    new = new_attention.heads(context.new.d_model)
    same = (old.n_heads, old.d_head) == (new.n_heads, new.d_head)
    if not same or x.shape[1:] != context.start[name].shape[1:]:
        return None
    together = _together(old_attention, context.old), _together(new_attention, context.new)
    return regroup_heads(x, old, new, together)


def _together(attention: AttentionConfig, model: ModelConfig) -> int:
    return heads_together(attention.build_parts(model.d_model, layer=0)["core"])


def regroup_heads(
    x: Tensor, old: HeadShape, new: HeadShape, together: tuple[int, int] = (1, 1)
) -> tuple[Tensor, Origin]:
    """Convert key or value projections to a different number of heads.

    `together` is the number of heads that the old and the new core compute as one unit.
    """
    numbers = torch.arange(old.n_kv_heads, device=x.device)[None, :, None]
    numbers = shared(numbers, old.n_heads, together=together[0])  # one per query head
    groups = numbers.reshape(new.n_kv_heads // together[1], -1, together[1]).mT.flatten(0, 1)
    heads = x.unflatten(0, (old.n_kv_heads, old.d_head))
    if bool((groups == groups[:, :1]).all()):
        how = f"each of {old.n_kv_heads} heads repeated for {new.n_kv_heads}"
        return heads[groups[:, 0]].flatten(0, 1), Origin("exact", how)
    mean = heads[groups].double().mean(1).to(x.dtype)
    how = f"the mean of {old.n_kv_heads} heads by group (Ainslie et al. 2023, §2.1)"
    return mean.flatten(0, 1), Origin("derived", how)


VOCABULARY = re.compile(r"(\w+_)?embed\.tokens\.weight|(exits\.\d+\.)?head\.(weight|bias)")


def _vocabulary(context: TransferContext, name: str) -> RuleResult:
    """Token rows: truncated, or extended by the mean of the old rows (Hewitt 2021)."""
    start = context.start[name]
    x = context.source_weight(name) if VOCABULARY.fullmatch(name) else None
    if x is None or x.shape[1:] != start.shape[1:]:
        return None
    n = len(start) - len(x)
    if n < 0:
        return x[:n], Origin("exact", f"the first {len(start)} of {len(x)} rows")
    mean = x.double().mean(0, keepdim=True).to(x.dtype)
    how = f"{n} new rows, the mean of the old (Hewitt 2021)"
    return torch.cat([x, mean.expand(n, *x.shape[1:])]), Origin("derived", how)


def _wider(context: TransferContext, name: str) -> RuleResult:
    """Additional feed-forward units, whose output weights are zero."""
    part = re.search(r"\.feedforward\..*(up|gate|down)_proj\.(weight|bias)$", name)
    x, start = context.source_weight(name) if part else None, context.start[name]
    if part is None or x is None:
        return None
    axis = 1 if part[1] == "down" else 0
    n = start.shape[axis] - x.shape[axis]
    others = [tuple(tensor.shape[:axis] + tensor.shape[axis + 1 :]) for tensor in (x, start)]
    if n <= 0 or others[0] != others[1]:
        return None
    tail = start.narrow(axis, x.shape[axis], n)
    tail = torch.zeros_like(tail) if axis else tail
    return torch.cat([x, tail.to(x)], axis), Origin("exact", f"{n} more units, which write zero")


def _zero(context: TransferContext, name: str) -> RuleResult:
    """A new bias of an existing weight: zero."""
    sibling = re.sub(r"bias(?=[^.]*$)", "weight", name)
    if (
        sibling == name
        or context.source_weight(name) is not None
        or context.source_weight(sibling) is None
    ):
        return None
    return torch.zeros_like(context.start[name]), Origin("exact", "zero")


RULES = (_gain, _position, _unchanged, _heads, _vocabulary, _wider, _zero)
"""The rules in order; a weight to which none applies is new."""
