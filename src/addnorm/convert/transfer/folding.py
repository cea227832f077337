"""Folding LayerNorm into RMSNorm: moves its mean and β into adjacent weights.

If everything added to the residual stream is centred over d_model, the mean of the stream is zero,
its variance is its mean square, and the two norms agree except for β. Since `W (x + β) + b` is `W x
+ (b + W β)`, β can be moved into the biases of the layers after the norm (Jiang et al. 2023).
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from addnorm.convert.transfer.verified import Inputs, every_output
from addnorm.models import EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.layers import LayerParts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.moe import MixtureOfExperts, MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from addnorm.nn.positions import LearnedConfig, PositionConfig, SinusoidalConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig, PreNormConfig
from addnorm.nn.waveform import WaveformEmbeddingConfig
from addnorm.parts import kind_of

Weights = dict[str, Tensor]

NORMS = re.compile(
    r"(.*blocks\.\d+|exits\.\d+|encoder|decoder|stack)\.((cross_)?(attention|feedforward)_residual\.)?norm"
)
"""The norms to fold."""

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
    audio = isinstance(getattr(new, "input", None), LogMelEmbeddingConfig | WaveformEmbeddingConfig)
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
        (getattr(new.embedding, "norm", None) is not None, "the embedding has a norm"),
        (
            isinstance(new.residual, PreNormConfig) and not new.residual.first,
            "the first sublayer has no norm, and would read centred embeddings",
        ),
        (
            any(isinstance(position, SinusoidalConfig) for position in positions),
            "sinusoidal positions cannot be centred (learned ones can: set position = learned too)",
        ),
        (
            any(layer.norm != model.norm for model in (old, new) for layer in _layers(model)),
            "some layers have another norm",
        ),
        (audio, "the output of an activation cannot be centred"),
        (
            any(getattr(model, "mtp", None) is not None for model in (old, new)),
            "multi-token prediction also reads what the final norm writes",
        ),
        (tied, "the head is tied to the table of tokens, which would be centred"),
    ]
    return next((reason for applies, reason in rules if applies), None)


def _layers(model: ModelConfig) -> Iterator[LayerParts]:
    for layers in model.stacks.values():
        yield from layers


def position_of(model: ModelConfig, name: str) -> PositionConfig:
    """The position configuration of the stack that an embedding weight belongs to."""
    if isinstance(model, EncoderDecoderConfig) and name.startswith("target_embed"):
        return model.decoder_position or model.position
    return model.position


# Weights that folding needs.


def with_folding_targets(model: ModelConfig, *, biases: bool) -> ModelConfig:
    """Untie the head and, if any β is non-zero, add the biases that absorb it."""
    head: Any = model.head
    if isinstance(head, TokenHeadConfig):
        head = replace(head, tied=False)
    if not biases:
        return replace(model, head=head)
    model = model.with_parts("attention", _mixer).with_parts("feedforward", _feedforward)
    return replace(model, head=_head(head))


def _mixer(mixer: Any) -> Any:
    match mixer:
        case AttentionConfig():
            out = mixer.bias if mixer.out_bias is None else mixer.out_bias
            return mixer if mixer.bias else replace(mixer, bias=True, out_bias=out)
        case RecurrentConfig():
            return replace(mixer, bias=True)
        case _:  # a convolution, which pads with zeros, or a custom part
            return mixer


def _feedforward(layer: Any) -> Any:
    if isinstance(layer, MixtureOfExpertsConfig):
        return replace(
            layer,
            expert=_feedforward(layer.expert),
            router=replace(layer.router, bias=True),
            shared=_feedforward(layer.shared),
        )
    if isinstance(layer, FeedForwardConfig | GatedFeedForwardConfig):
        return replace(layer, bias=True)
    return layer  # a custom part


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


# The weights that read a norm, found by running a copy of the model in which every norm returns a
# mark, a random vector that is the same for all tokens. What multiplies a mark reads its norm.

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LINEAR = {F.linear, *(getattr(torch._VF, name) for name in RECURRENT)}  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
"""The functions that multiply each token's input by their first matrix and add a first bias."""


@dataclass(frozen=True)
class Reader:
    """A weight that reads a norm's output, the bias added to the product, and the input's factor.

    `bias` is None if nothing is added, or if a constant input does not give a constant output, as
    in a convolution that pads with zeros.
    """

    weight: str
    bias: str | None
    factor: float = 1.0


@torch.no_grad()
def readers(model: Model, norms: Iterable[str], config: ModelConfig) -> dict[str, list[Reader]]:
    """The readers of each norm's output, by its name; empty if the model does not run."""
    marked = copy.deepcopy(model).cpu().double().eval()
    for module in marked.modules():
        if isinstance(module, MixtureOfExperts):
            module.mix = module.dense  # every expert runs, whatever the router chooses
    draw = torch.Generator().manual_seed(0)
    names = {id(parameter): name for name, parameter in marked.named_parameters()}
    marks = {
        name: torch.randn(config.d_model, generator=draw, dtype=torch.float64) for name in norms
    }
    for name, mark in marks.items():
        _replace_output(marked.get_submodule(name), mark)
    watch = _ReaderWatch(marks, names)
    try:
        inputs = replace(Inputs.of(marked, marked, config), valid=None)
        with watch:
            for _ in every_output(marked, inputs):
                pass
    except (ValueError, RuntimeError):
        return {name: [] for name in marks}
    return {name: list(dict.fromkeys(norm_readers)) for name, norm_readers in watch.readers.items()}


def _replace_output(norm: nn.Module, mark: Tensor) -> None:
    def marked(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return mark.expand(output.shape)

    norm.register_forward_hook(marked)


class _ReaderWatch(TorchFunctionMode):
    """Records every function call in which a norm's marked output meets a weight."""

    def __init__(self, marks: Mapping[str, Tensor], names: Mapping[int, str]) -> None:
        super().__init__()
        self.marks, self.names = marks, names
        self.readers: dict[str, list[Reader]] = {name: [] for name in marks}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*_tensors(args), *_tensors((kwargs or {}).values())]
        weights = [tensor for tensor in given if id(tensor) in self.names]
        if given and any(tensor.ndim > 1 for tensor in weights):
            self._record(func, given[0], weights)
        return func(*args, **(kwargs or {}))

    def _record(self, func: Callable[..., Any], x: Tensor, weights: list[Tensor]) -> None:
        matrix = next(weight for weight in weights if weight.ndim > 1)
        bias = next((self.names[id(weight)] for weight in weights if weight.ndim == 1), None)
        for norm, mark in self.marks.items():
            factor = _factor(x, mark)
            if factor is not None and func in LINEAR:
                self.readers[norm].append(Reader(self.names[id(matrix)], bias, factor))
            elif factor is not None or (
                x.ndim > 2 and _factor(x.mT, mark, any_row=True) is not None
            ):
                self.readers[norm].append(Reader(self.names[id(matrix)], None))


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    flat = (
        tensor
        for value in values
        for tensor in (value if isinstance(value, list | tuple) else [value])
    )
    return [tensor for tensor in flat if isinstance(tensor, Tensor)]


def _factor(x: Tensor, mark: Tensor, *, any_row: bool = False) -> float | None:
    """The factor by which all rows of `x` are multiples of the mark; None if they are not.

    A wider row has copies of the mark side by side. With `any_row`, one such row is enough.
    """
    if not x.is_floating_point() or x.ndim == 0 or not x.numel() or x.shape[-1] % len(mark):
        return None
    rows, copies = x.reshape(-1, x.shape[-1]).to(mark), mark.repeat(x.shape[-1] // len(mark))
    factors = rows @ copies / (copies @ copies)
    factor = factors[len(factors) // 2]
    near = (rows - factor * copies).abs().amax(1) <= 1e-9 * factor.abs()
    return float(factor) if factor != 0 and (near.any() if any_row else near.all()) else None


# The folding itself.


@dataclass(frozen=True)
class FoldingReport:
    """The weights changed, with the kind of change, and the readers that could not absorb β."""

    how: dict[str, str]
    dropped: tuple[str, ...]


def nonzero_betas(weights: Mapping[str, Tensor]) -> Weights:
    """The non-zero β of norms in the model's stacks and exits, by norm name."""
    named = ((name.removesuffix(".bias"), weight) for name, weight in weights.items())
    return {
        norm: weight
        for norm, weight in named
        if f"{norm}.bias" in weights and NORMS.fullmatch(norm) and bool(weight.any())
    }


def fold_layernorm(
    weights: Weights,
    beta: Mapping[str, Tensor],
    model: ModelConfig,
    read_by: Mapping[str, Sequence[Reader]],
) -> FoldingReport:
    """Centre the weights that write to the residual stream, and move β into biases, in place.

    `read_by` names the readers of each norm (see `readers`).
    """
    how: dict[str, str] = {}
    for name in weights:
        axis = _axis(name, model)
        if axis is not None:
            weights[name] = weights[name] - weights[name].mean(axis, keepdim=True)
            how[name] = "centred"
    dropped: list[str] = []
    for norm, norm_readers in read_by.items():
        dropped += [] if norm_readers else [norm]
        for reader in norm_readers:
            if reader.bias is None:
                dropped.append(reader.weight)
                continue
            weight = weights[reader.weight]
            shift = beta[norm].repeat(weight.shape[1] // len(beta[norm]))  # of a flat head
            weights[reader.bias] = weights[reader.bias] + reader.factor * (weight @ shift)
            how[reader.bias] = "β added"
    return FoldingReport(how, tuple(dropped))


def _axis(name: str, model: ModelConfig) -> int | None:
    """The axis of hidden features, if the weight writes to the residual stream; else None."""
    narrow = getattr(model.embedding, "d_embed", None) is not None
    if narrow and name.endswith("embed.tokens.weight"):
        return None  # it is projected before it writes to the residual stream
    learned = isinstance(position_of(model, name), LearnedConfig)
    if WRITERS_ON_LAST_AXIS.fullmatch(name) or (learned and TABLE.fullmatch(name)):
        return -1
    return 0 if WRITERS_ON_FIRST_AXIS.fullmatch(name) else None
