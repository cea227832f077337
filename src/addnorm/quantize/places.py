"""Which layers of a model are quantised, by name: those of built-in parts, and those included."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from addnorm.errors import InputError, nearest
from addnorm.models import Model
from addnorm.models.ledger import Ledger
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.convolution import Convolution
from addnorm.nn.embed import Embedding
from addnorm.nn.feedforward import FeedForward, GatedFeedForward
from addnorm.nn.forecast import ForecastHead
from addnorm.nn.heads import TokenHead
from addnorm.nn.linear import Linear
from addnorm.nn.recurrent import Recurrent
from addnorm.quantize.layers import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedRecurrence,
    QuantizedTokenHead,
)

MAPS = (MultiHead, FeedForward, GatedFeedForward, Recurrent, Convolution, ForecastHead)
"""The modules whose linear layers, and recurrent layers of torch's, are quantised."""

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
QUANTIZED = (QuantizedLinear, QuantizedEmbedding, QuantizedTokenHead, QuantizedRecurrence)


@dataclass(frozen=True)
class Place:
    """A layer that is quantised: its name, and where it stands."""

    name: str
    parent: nn.Module
    attribute: str
    part: nn.Module

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The weights in few bits, by their names in the layer."""
        weights = dict(self.part.named_parameters(recurse=False))
        if isinstance(self.part, nn.RNNBase):
            return {name: weight for name, weight in weights.items() if weight.ndim == 2}
        return {"weight": weights["weight"]}


def places_of(model: Model, include: Collection[str] = ()) -> list[Place]:
    """All that is quantised: what is built in, and the layers of these names; tables last."""
    layers: list[Place] = []
    tables: list[Place] = []
    for place in _all_places(model):
        parent, part = place.parent, place.part
        if isinstance(parent, Embedding) and part is parent.tokens:
            tables.append(place)
        elif isinstance(part, TokenHead) or _is_map(parent, part) or place.name in include:
            layers.append(place)
    return layers + tables


def _all_places(model: nn.Module) -> Iterator[Place]:
    for path, module in model.named_modules():
        for name, part in module.named_children():
            yield Place(f"{path}.{name}".strip("."), module, name, part)


def _is_map(module: nn.Module, part: nn.Module) -> bool:
    return isinstance(module, MAPS) and isinstance(part, nn.Linear | nn.RNNBase)


def includable(model: Model) -> list[str]:
    """The names of layers that stay as they are unless they are included.

    Linear and recurrent layers of torch's or ours, exactly; such as those of modules of your own.
    """
    known = {id(place.part) for place in places_of(model)}
    return [
        place.name
        for place in _all_places(model)
        if type(place.part) in (nn.Linear, Linear, *RECURRENT) and id(place.part) not in known
    ]


def names_to_include(model: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of `includable` layers that these patterns match.

    Raises `InputError` for a pattern that matches none.
    """
    names, found = includable(model), list[str]()
    for pattern in patterns:
        some = [name for name in names if fnmatchcase(name, pattern)]
        if not some:
            there = nearest(pattern, names) or (
                f" There are {', '.join(names[:4])}." if names else " No layer stays as it is."
            )
            raise InputError(
                f"include {pattern!r} matches no linear or recurrent layer that would stay as it "
                f"is.{there}"
            )
        found += some
    return tuple(dict.fromkeys(found))


def products_of(model: Model, include: Collection[str] = ()) -> dict[str, nn.Module]:
    """The linear layers and heads that are quantised, by name."""
    return {
        place.name: place.part
        for place in places_of(model, include)
        if isinstance(place.part, nn.Linear | TokenHead)
    }


def names_matching(
    model: Model, patterns: Sequence[str], include: Collection[str] = ()
) -> frozenset[str]:
    """The names of the layers to keep, with those tied to them.

    Raises `InputError` for a pattern that matches none.
    """
    names = [place.name for place in places_of(model, include)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"keep {pattern!r} matches no layer that is quantised.{nearest(pattern, names)}"
            )
    matching = {n for n in names if any(fnmatchcase(n, one) for one in patterns)}
    return with_tied(model, matching, include)


def with_tied(
    model: Model, names: Collection[str], include: Collection[str] = ()
) -> frozenset[str]:
    """The layers of these names, and those that share a weight with one of them."""
    places = places_of(model, include)
    weights = {id(w) for one in places if one.name in names for w in one.matrices.values()}
    tied = [one for one in places if weights & {id(w) for w in one.matrices.values()}]
    return frozenset(one.name for one in tied)


def check_some_left(model: Model, kept: Collection[str], include: Collection[str] = ()) -> None:
    """Raise `InputError` if every layer is to be kept."""
    if len(kept) == (n := len(places_of(model, include))):
        raise InputError(f"nothing to quantise: all {n} layers are to be kept as they are")


def check_replaceable(model: Model, include: Collection[str] = ()) -> None:
    """Raise `InputError` unless every module to be replaced is exactly a built-in one."""
    if any(isinstance(module, QUANTIZED) for module in model.modules()):
        raise InputError("the model is quantised already: take the one that it was made of")
    ledger = Ledger(model, "quantisation")
    places = places_of(model, include)
    for part in (place.part for place in places):
        if isinstance(part, TokenHead):
            _claim_head(ledger, part)
        elif isinstance(part, nn.RNNBase):
            ledger.module(part, *RECURRENT)
            ledger.leave_all(part, because="the new layer has all but its matrices as it is")
        elif isinstance(part, nn.Embedding):
            ledger.table(part)
        else:
            ledger.linear(part)
        ledger.close(part)
    if not places:
        raise InputError("nothing to quantise: this model has no linear layer that is known")


def _claim_head(ledger: Ledger, head: TokenHead) -> None:
    ledger.module(head, TokenHead)
    for name in ("weight", "bias", "scale", "softcap"):
        ledger.take(head, name)
    if head.transform is not None:
        ledger.leave_all(head.transform, because="the new head has it as it is")
