"""Folding LayerNorm into RMSNorm: its mean and β are moved into adjacent weights.

If everything added to the residual stream is centred over d_model, the mean of the stream is zero,
its variance is its mean square, and the two norms agree except for β. Since `W (x + β) + b` is `W x
+ (b + W β)`, β can be moved into the biases of the layers after the norm (Jiang et al. 2023).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import LearnedConfig, PositionConfig, SinusoidalConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.parts import kind_of

Weights = dict[str, Tensor]

NORM_READERS = (
    (
        r"(.*)\.attention_residual\.norm",
        r"\1\.attention\.([qkv]_proj\.weight|(ahead|back)\.weight_ih_l0|conv\.\d+\.weight"
        r"|output\..*)",
    ),
    (
        r"(.*)\.cross_attention_residual\.norm",
        r"\1\.cross_attention\.(q_proj\.weight|output\..*)",
    ),
    (
        r"(.*)\.feedforward_residual\.norm",
        r"\1\.feedforward\.(experts\.\d+\.)?(up_proj|gate_proj|router)\.weight",
    ),
    (
        r"(.*blocks\.\d+)\.norm",
        r"\1\.(attention\.([qkv]_proj\.weight|(ahead|back)\.weight_ih_l0|conv\.\d+\.weight"
        r"|output\..*)|cross_attention\.(q_proj\.weight|output\..*)"
        r"|feedforward\.(experts\.\d+\.)?(up_proj|gate_proj|router)\.weight)",
    ),
    (r"encoder\.norm", r"decoder\.blocks\.\d+\.cross_attention\.[kv]_proj\.weight"),
    (r"(?:stack|decoder)\.norm", r"head\.(proj\.|transform\.proj\.)?weight"),
    (r"(exits\.\d+)\.norm", r"\1\.head\.(proj\.|transform\.proj\.)?weight"),
)
"""The norms to fold, and the weights that read the output of each."""

NO_BIAS = re.compile(r".*\.((router|conv\.\d+)\.weight|output\..*)")
"""Readers that cannot absorb β: routers and gates have no bias, and convolutions pad with zeros."""

WRITERS_ON_LAST_AXIS = re.compile(
    r"(\w+_)?embed\.(tokens\.weight|types\.weight|class_token|positions)"
)
TABLE = re.compile(r"(\w+_)?embed\.position\.table\.weight")
WRITERS_ON_FIRST_AXIS = re.compile(
    r"(.*blocks\.\d+\..*(out|down)_proj|(\w+_)?embed\.proj)\.(weight|bias)"
)
"""Weights that write to the residual stream, by the axis of its features."""


def folds_layernorm(old: ModelConfig, new: ModelConfig) -> bool:
    """Whether LayerNorm in the old model becomes RMSNorm in the new one."""
    rms = isinstance(new.norm, RMSNormConfig | OffsetRMSNormConfig)
    return isinstance(old.norm, LayerNormConfig) and rms


def folding_obstacle(old: ModelConfig, new: ModelConfig) -> str | None:
    """The reason why LayerNorm cannot be folded exactly in this model; None if it can."""
    tied = isinstance(new.head, TokenHeadConfig) and new.head.tied
    positions = [position_of(new, name) for name in ("embed", "target_embed")]
    audio = isinstance(getattr(new, "input", None), LogMelEmbeddingConfig)
    rules = [
        (
            not isinstance(new.residual, PreNormConfig | ParallelConfig)
            or new.residual != old.residual,
            f"not with {kind_of(new.residual)} placement, where norms write to the residual stream",
        ),
        (
            getattr(old.norm, "eps", None) != getattr(new.norm, "eps", None),
            "the norms differ in eps",
        ),
        (getattr(new.embedding, "norm", None) is not None, "the embedding has a norm of its own"),
        (
            isinstance(new.residual, PreNormConfig) and not new.residual.first,
            "the first sublayer has no norm and reads what would be centred",
        ),
        (
            any(isinstance(one, SinusoidalConfig) for one in positions),
            "sinusoidal positions cannot be centred (position = learned, set as well, can)",
        ),
        (audio, "what comes out of an activation cannot be centred"),
        (tied, "the head is tied to the table, which has to be centred"),
    ]
    return next((why for wrong, why in rules if wrong), None)


def position_of(model: ModelConfig, name: str) -> PositionConfig:
    """The position configuration of the stack that an embedding weight belongs to."""
    if isinstance(model, EncoderDecoderConfig) and name.startswith("target_embed"):
        return model.decoder_position or model.position
    return model.position


# Weights that folding needs.


def with_folding_targets(model: ModelConfig, *, biases: bool) -> ModelConfig:
    """Untie the head and, if β is non-zero, add the biases that absorb it."""
    head: Any = model.head
    if isinstance(head, TokenHeadConfig):
        head = replace(head, tied=False)
    if not biases:
        return replace(model, head=head)
    parts: dict[str, Any] = {}
    for side in ("", "cross_", "decoder_"):
        for name, with_bias in (("attention", _mixer), ("feedforward", _feedforward)):
            part = getattr(model, f"{side}{name}", None)
            if part is not None:
                parts[f"{side}{name}"] = with_bias(part)
    return replace(model, **parts, head=_head(head))


def _mixer(mixer: Any) -> Any:
    match mixer:
        case AttentionConfig():
            out = mixer.bias if mixer.out_bias is None else mixer.out_bias
            return mixer if mixer.bias else replace(mixer, bias=True, out_bias=out)
        case RecurrentConfig():
            return replace(mixer, bias=True)
        case _:
            assert isinstance(mixer, ConvolutionConfig)
            return mixer


def _feedforward(layer: Any) -> Any:
    if isinstance(layer, MixtureOfExpertsConfig):
        return replace(layer, expert=_feedforward(layer.expert))
    assert isinstance(layer, FeedForwardConfig | GatedFeedForwardConfig)
    return replace(layer, bias=True)


def _head(head: HeadConfig) -> HeadConfig:
    match head:
        case TokenHeadConfig(transform=None):
            return replace(head, bias=True)
        case TokenHeadConfig(transform=transform):
            assert transform is not None
            return replace(head, transform=replace(transform, bias=True))
        case ClassificationHeadConfig() | TaggingHeadConfig() if head.transform is not None:
            return replace(head, transform=replace(head.transform, bias=True))
        case _:
            return head


# The folding itself.


@dataclass(frozen=True)
class FoldingReport:
    """The changed weights with the kind of change, and the readers that could not absorb β."""

    how: dict[str, str]
    dropped: tuple[str, ...]


def nonzero_betas(weights: Mapping[str, Tensor]) -> Weights:
    """The non-zero β of the norms in the model's stacks, by norm name."""
    named = ((name.removesuffix(".bias"), one) for name, one in weights.items())
    return {
        norm: one
        for norm, one in named
        if f"{norm}.bias" in weights and _reader_pattern(norm) is not None and bool(one.any())
    }


def fold_layernorm(
    weights: Weights, beta: Mapping[str, Tensor], model: ModelConfig
) -> FoldingReport:
    """Centre what writes to the residual stream, and move β into the readers' biases, in place."""
    how: dict[str, str] = {}
    for name in weights:
        axis = _axis(name, model)
        if axis is not None:
            wide = weights[name].double()
            weights[name] = (wide - wide.mean(axis, keepdim=True)).to(weights[name].dtype)
            how[name] = "centred"
    dropped: list[str] = []
    for norm, shift in beta.items():
        if f"{norm}.weight" not in weights:
            continue
        readers = _readers(norm, weights)
        dropped += [] if readers else [norm]
        for reader in readers:
            bias = re.sub(r"weight(?=[^.]*$)", "bias", reader)
            if bias not in weights or NO_BIAS.fullmatch(reader):
                dropped.append(reader)
                continue
            patches = weights[reader].shape[1] // len(shift)  # side by side, in a flat head
            added = weights[reader].double() @ shift.double().repeat(patches)
            added = added * _scale(reader, model)
            weights[bias] = (weights[bias].double() + added).to(weights[bias].dtype)
            how[bias] = "β added"
    return FoldingReport(how, tuple(dropped))


def _axis(name: str, model: ModelConfig) -> int | None:
    """The axis of the hidden features, if the weight writes to the residual stream."""
    narrow = getattr(model.embedding, "d_embed", None) is not None
    if narrow and name.endswith("embed.tokens.weight"):
        return None  # what is mapped to the residual stream, and writes nothing there itself
    learned = isinstance(position_of(model, name), LearnedConfig)
    if WRITERS_ON_LAST_AXIS.fullmatch(name) or (learned and TABLE.fullmatch(name)):
        return -1
    return 0 if WRITERS_ON_FIRST_AXIS.fullmatch(name) else None


def _reader_pattern(norm: str) -> str | None:
    for pattern, readers in NORM_READERS:
        if found := re.fullmatch(pattern, norm):
            inside = re.escape(found[1]) if found.groups() else ""
            return readers.replace(r"\1", inside)
    return None


def _readers(norm: str, weights: Iterable[str]) -> list[str]:
    """The weights that read a norm's output; for a head with a transform, only the transform."""
    pattern = _reader_pattern(norm)
    found = [name for name in weights if pattern is not None and re.fullmatch(pattern, name)]
    transforms = [name for name in found if "transform" in name]
    return transforms or found


def _scale(reader: str, model: ModelConfig) -> float:
    """The factor on a reader's outputs before its bias is added."""
    head = re.fullmatch(r"(exits\.\d+\.)?head\.weight", reader) is not None
    scaled = isinstance(model.head, TokenHeadConfig) and model.head.scale == "sqrt"
    return model.d_model**-0.5 if head and scaled else 1.0
