"""The layers of a model that can be quantised: those of built-in parts, and included ones."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from addnorm.errors import InputError, nearest
from addnorm.models import Model
from addnorm.models.ledger import Ledger
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.convolution import Convolution
from addnorm.nn.delta import GatedDelta
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.forecast import ForecastHead
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import Linear
from addnorm.nn.mamba import Mamba2
from addnorm.nn.positions.transformer_xl import RelativeScores
from addnorm.nn.recurrent import Recurrent
from addnorm.nn.short_convolution import GatedConvolution
from addnorm.quantize.layers import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedRecurrence,
    QuantizedTokenHead,
)

MAPS = (
    MultiHead,
    CrossLayerAttention,
    FeedForward,
    GatedFeedForward,
    Recurrent,
    Convolution,
    GatedDelta,
    Mamba2,
    GatedConvolution,
    ForecastHead,
)
"""The modules whose linear layers, and recurrent layers of torch's, are quantised."""

READING_WEIGHTS = (RelativeScores,)
"""The modules that read the weight of a linear layer themselves, so that it stays as it is."""

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
QUANTIZED = (QuantizedLinear, QuantizedEmbedding, QuantizedTokenHead, QuantizedRecurrence)


@dataclass(frozen=True)
class LayerSlot:
    """A layer to quantise: its name, and the module and attribute that hold it."""

    name: str
    parent: nn.Module
    attribute: str
    part: nn.Module

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The weights to quantise, by name in the layer."""
        weights = dict(self.part.named_parameters(recurse=False))
        if isinstance(self.part, nn.RNNBase):
            return {name: weight for name, weight in weights.items() if weight.ndim == 2}
        return {"weight": weights["weight"]}


def slots_of(model: Model, include: Collection[str] = ()) -> list[LayerSlot]:
    """The layers to quantise: of built-in parts, and those in `include`; tables come last."""
    layers: list[LayerSlot] = []
    tables: list[LayerSlot] = []
    for slot in _all_slots(model):
        parent, part = slot.parent, slot.part
        built_in = isinstance(parent, MAPS) and isinstance(part, nn.Linear | nn.RNNBase)
        if isinstance(parent, Embedding) and part is parent.tokens:
            tables.append(slot)
        elif built_in or isinstance(part, TokenHead) or slot.name in include:
            layers.append(slot)
    return layers + tables


def _all_slots(model: nn.Module) -> Iterator[LayerSlot]:
    for path, module in model.named_modules():
        for name, part in module.named_children():
            yield LayerSlot(f"{path}.{name}".strip("."), module, name, part)


def includable(model: Model) -> list[str]:
    """The names of layers that are quantised only on request.

    These are linear and recurrent layers outside of built-in parts, such as those of custom
    modules; their type must be exactly one of torch or ours.
    """
    built_in = {id(slot.part) for slot in slots_of(model)}
    return [
        slot.name
        for slot in _all_slots(model)
        if type(slot.part) in (nn.Linear, Linear, *RECURRENT)
        and id(slot.part) not in built_in
        and not isinstance(slot.parent, READING_WEIGHTS)
    ]


def names_to_include(model: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of `includable` layers that match these patterns.

    Raises `InputError` for a pattern that matches none.
    """
    names, included = includable(model), list[str]()
    for pattern in patterns:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            hint = nearest(pattern, names) or (
                f" There are {', '.join(names[:4])}." if names else " No layer stays as it is."
            )
            raise InputError(
                f"`include = {pattern}`: matches no linear or recurrent layer that would stay as "
                f"it is.{hint}"
            )
        included += matches
    return tuple(dict.fromkeys(included))


def products_of(model: Model, include: Collection[str] = ()) -> dict[str, nn.Module]:
    """The linear layers and heads to quantise, by name."""
    return {
        slot.name: slot.part
        for slot in slots_of(model, include)
        if isinstance(slot.part, nn.Linear | TokenHead)
    }


def names_matching(
    model: Model, patterns: Sequence[str], include: Collection[str] = ()
) -> frozenset[str]:
    """The names of the layers to keep unquantised, and of those tied to them.

    Raises `InputError` for a pattern that matches none.
    """
    names = [slot.name for slot in slots_of(model, include)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"`keep = {pattern}`: matches no layer that is quantised.{nearest(pattern, names)}"
            )
    matches = {name for name in names if any(fnmatchcase(name, p) for p in patterns)}
    return with_tied(model, matches, include)


def with_tied(
    model: Model, names: Collection[str], include: Collection[str] = ()
) -> frozenset[str]:
    """Return these layers' names, and those of layers that share a weight with one of them."""
    slots = slots_of(model, include)
    weights = {id(w) for slot in slots if slot.name in names for w in slot.matrices.values()}
    tied = [slot for slot in slots if weights & {id(w) for w in slot.matrices.values()}]
    return frozenset(slot.name for slot in tied)


def check_some_left(model: Model, names: Collection[str], include: Collection[str] = ()) -> None:
    """Raise `InputError` if these are the names of all layers."""
    if len(names) == (n := len(slots_of(model, include))):
        raise InputError(f"nothing to quantise: all {n} layers are to be kept as they are")


def check_replaceable(model: Model, include: Collection[str] = ()) -> None:
    """Raise `InputError` unless every module to replace is exactly a built-in one."""
    if any(isinstance(module, QUANTIZED) for module in model.modules()):
        raise InputError("the model is quantised already: take the model before quantisation")
    ledger = Ledger(model, "quantisation")
    slots = slots_of(model, include)
    for part in (slot.part for slot in slots):
        if isinstance(part, TokenHead):
            _claim_head(ledger, part)
        elif isinstance(part, nn.RNNBase):
            ledger.module(part, *RECURRENT)
            ledger.leave_all(part, because="the new layer keeps all but the matrices")
        elif isinstance(part, nn.Embedding):
            ledger.table(part)
        else:
            ledger.linear(part)
        ledger.close(part)
    if not slots:
        raise InputError("nothing to quantise: this model has no built-in linear layer")


def _claim_head(ledger: Ledger, head: TokenHead) -> None:
    ledger.module(head, TokenHead)
    for name in ("weight", "bias", "scale", "softcap"):
        ledger.take(head, name)
    if head.transform is not None:
        ledger.leave_all(head.transform, because="the new head keeps it")
