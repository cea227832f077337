"""Transferring weights from another model by the names of rows: classes, variables and tokens.

Which axes stand for names is asked of the model: those that grow with one more class, variable or
token.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.inputs import TokenInputConfig
from addnorm.models.weights import Weights, weights_of
from addnorm.nn.init import without_values
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.runs.files.weights import sized_model, vocabulary_sizes
from addnorm.runs.recipes.starting_model import (
    NOTHING_MATCHES,
    MatchReport,
    Transfer,
    matching_weights,
    shown,
)
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.registry import task_of_head
from addnorm.tasks.regression import Regression

Kind = Literal["labels", "variables", "source tokens", "target tokens", "tokens"]
"""The kinds of names of a weight's rows; `tokens` where source and target share a table."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Names:
    """The names of a model's classes, of its variables and of its tokens, in their order."""

    labels: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    source: tuple[str | None, ...] = ()
    target: tuple[str | None, ...] = ()

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        tokenizers: Tokenizers | None,
        labels: Sequence[str],
        variables: Sequence[str],
    ) -> "Names":
        """The names of a model. The numbers of a regression have none, and stay in their order."""
        task = task_of_head(model.head)
        if isinstance(task, Forecasting):
            labels, variables = (), labels
        elif isinstance(task, Regression):
            labels = [f"number {i}" for i, _ in enumerate(labels)]
        if tokenizers is None:
            return cls(tuple(labels), tuple(variables))
        source = _tokens(tokenizers.source)
        same = tokenizers.target is tokenizers.source
        target = source if same else _tokens(tokenizers.target)
        return cls(tuple(labels), tuple(variables), source, target)

    @classmethod
    def of_run(cls, run: TrainedModel) -> "Names":
        """The names of a run."""
        return cls.of(run.recipe.model, run.text, run.labels, run.variables)

    def named(self, kind: Kind) -> tuple[str | None, ...]:
        """The names of one kind; empty for `tokens` if source and target tokens differ."""
        match kind:
            case "labels":
                return self.labels
            case "variables":
                return self.variables
            case "source tokens":
                return self.source
            case "target tokens":
                return self.target
            case "tokens":
                return self.source if self.source == self.target else ()


def _tokens(tokenizer: Tokenizer) -> tuple[str | None, ...]:
    return tuple(tokenizer.codec.name(i) for i in range(tokenizer.vocab_size))


class Axis(NamedTuple):
    """A weight's axis with named rows; each name has `each` entries in a row, 0 if unknown."""

    kind: Kind
    each: int


Axes = Mapping[str, Mapping[int, Axis]]
"""The named axes of weights, by the name of the weight and the number of the axis."""

Shapes = Mapping[str, tuple[int, ...]]


def named_axes(model: ModelConfig, source: int, target: int, n_labels: int) -> Axes:
    """Return the axes of a model's weights that have named rows, for these sizes.

    The model is built with one name more of each kind, and the axes that grow are of this kind.
    """
    plain = _shapes(model, source, target, n_labels)
    axes: defaultdict[str, dict[int, Axis]] = defaultdict(dict)
    for kind, n, larger in _larger(model, source, target, n_labels):
        for name, shape in plain.items():
            for dim, (few, more) in enumerate(zip(shape, larger[name], strict=True)):
                if few != more:
                    each = more - few
                    in_order = few == n * each and (each == 1 or kind == "variables")
                    axes[name][dim] = Axis(kind, each if in_order else 0)
    return axes


def _larger(
    model: ModelConfig, source: int, target: int, n_labels: int
) -> Iterator[tuple[Kind, int, Shapes]]:
    """Each kind of name that a model has, with their number and the weight shapes for one more."""
    if isinstance(model, EncoderDecoderConfig):
        if model.share_embeddings and isinstance(model.input, TokenInputConfig):
            yield "tokens", source, _shapes(model, source + 1, target + 1, n_labels)
            return
        yield "target tokens", target, _shapes(model, source, target + 1, n_labels)
    if source:
        yield "source tokens", source, _shapes(model, source + 1, target, n_labels)
    if n_labels:
        yield "labels", n_labels, _shapes(model, source, target, n_labels + 1)
    if isinstance(model, EncoderConfig) and isinstance(model.input, SeriesEmbeddingConfig):
        n = model.input.channels
        wider = replace(model, input=replace(model.input, channels=n + 1))
        yield "variables", n, _shapes(wider, source, target, n_labels)


def _shapes(model: ModelConfig, source: int, target: int, n_labels: int) -> Shapes:
    try:
        with without_values():
            built = sized_model(model, source, target, n_labels)
    except (RuntimeError, TypeError):  # custom parts that need real tensors
        built = sized_model(model, source, target, n_labels)
    return {name: tuple(weight.shape) for name, weight in weights_of(built).items()}


# Taking over.

IN_ORDER = "rows taken over in their order, not by name, as an earlier version did"


def take_weights(
    model: nn.Module,
    config: ModelConfig,
    saved: tuple[Tokenizers | None, Sequence[str], Sequence[str]],
    begun: TrainedModel,
) -> MatchReport:
    """Copy the weights of a run that have a place in `model` (see `transfer_of`)."""
    return transfer_of(model, config, saved, begun).all_into(model, begun.weights)


def transfer_of(
    model: nn.Module,
    config: ModelConfig,
    saved: tuple[Tokenizers | None, Sequence[str], Sequence[str]],
    begun: TrainedModel,
    *,
    by_name: bool = True,
) -> Transfer:
    """The transfer of the weights of a run that have a place in `model`, built from `config`.

    Rows that stand for names are copied by them: those of the model are its tokens, labels and
    variables. Without `by_name` they are copied in their order, and the report notes where it
    differs. No values are read. Raises `InputError` if no weight has a place.
    """
    tokenizers, labels, _ = saved
    ours, theirs = Names.of(config, *saved), Names.of_run(begun)
    if ours == theirs or not by_name:
        transfer = matching_weights(model, begun.weights)
        if ours == theirs:
            return transfer
        return replace(transfer, report=replace(transfer.report, names=(IN_ORDER,)))
    axes = named_axes(config, *vocabulary_sizes(config, tokenizers), len(labels))
    return transfer_by_name(model, ours, axes, begun.weights, theirs)


def transfer_by_name(
    model: nn.Module, ours: Names, axes: Axes, weights: Weights, theirs: Names
) -> Transfer:
    """The transfer of weights of the same name and shape; of named axes, by the names of rows.

    Raises `InputError` if nothing matches.
    """
    targets = weights_of(model)
    complete: list[str] = []
    partly: list[str] = []
    copies = dict[str, Callable[[Tensor, Tensor], None]]()
    for name, target in targets.items():
        source = weights.get(name)
        rows = None if source is None else _rows(target, source, axes.get(name, {}), ours, theirs)
        if rows is None:
            continue
        copies[name] = partial(_copy, rows)
        whole = all(len(into) == n for (into, _), n in zip(rows, target.shape, strict=True))
        (complete if whole else partly).append(name)
    if not (complete or partly):
        raise InputError(NOTHING_MATCHES)
    taken = {*complete, *partly}
    new, unused = ([name for name in side if name not in taken] for side in (targets, weights))
    kinds = {axis.kind for named in axes.values() for axis in named.values()}
    phrases = (_phrase(k, ours.named(k), theirs.named(k)) for k in KINDS if k in kinds)
    report = MatchReport(
        tuple(complete), tuple(new), tuple(unused), tuple(partly), tuple(filter(None, phrases))
    )
    return Transfer(report, copies)


def _rows(
    target: Tensor, source: Tensor, named: Mapping[int, Axis], ours: Names, theirs: Names
) -> list[tuple[Tensor, Tensor]] | None:
    """The entries of each axis to copy to, and those to copy from; None if there are none."""
    if target.ndim != source.ndim:
        return None
    rows: list[tuple[Tensor, Tensor]] = []
    for dim, (n, of) in enumerate(zip(target.shape, source.shape, strict=True)):
        axis = named.get(dim)
        if n == of and (axis is None or ours.named(axis.kind) == theirs.named(axis.kind)):
            every = torch.arange(n)
            rows.append((every, every))
            continue
        if axis is None or not axis.each or of % axis.each:
            return None
        common = _common(ours.named(axis.kind), theirs.named(axis.kind), of // axis.each)
        if not common:
            return None
        rows.append(
            (_entries([i for i, _ in common], axis), _entries([j for _, j in common], axis))
        )
    return rows


def _common(
    ours: Sequence[str | None], theirs: Sequence[str | None], n: int
) -> list[tuple[int, int]]:
    """Pairs of indices of the names that both models have; empty if some of theirs have no name."""
    if len(theirs) > n:
        return []
    if ours == theirs:
        return [(i, i) for i, _ in enumerate(ours)]
    places = {name: j for j, name in reversed([*enumerate(theirs)]) if name is not None}
    return [(i, places[name]) for i, name in enumerate(ours) if name in places]


def _entries(numbers: Sequence[int], axis: Axis) -> Tensor:
    """The entries of an axis that belong to the names with these indices."""
    first = torch.tensor(numbers)[:, None] * axis.each
    return (first + torch.arange(axis.each)).flatten()


def _copy(rows: Sequence[tuple[Tensor, Tensor]], target: Tensor, source: Tensor) -> None:
    """Copy entries of every axis into those of the target."""
    if all(into is out_of for into, out_of in rows):
        target.copy_(source)
        return
    for dim, (_, out_of) in enumerate(rows):
        source = source.index_select(dim, out_of.to(source.device))
    # Each index is along its own axis, and they are broadcast to all entries.
    index = [
        into.view([-1 if i == dim else 1 for i in range(len(rows))])
        for dim, (into, _) in enumerate(rows)
    ]
    target[tuple(entries.to(target.device) for entries in index)] = source.to(target)


def _phrase(kind: Kind, ours: Sequence[str | None], theirs: Sequence[str | None]) -> str | None:
    """Return how names of a kind differ from those of the starting model; None if they do not."""
    if ours == theirs or not theirs:
        return None
    here, there = (tuple(name for name in side if name is not None) for side in (ours, theirs))
    fresh = tuple(name for name in here if name not in {*there})
    unused = tuple(name for name in there if name not in {*here})
    if len(fresh) == len(here):
        return f"no {kind} in common with {shown(there)}: new rows for {shown(here)}"
    if not (fresh or unused):
        return f"{kind} in another order: rows taken over by name"
    parts = [f"{len(here) - len(fresh)} of {len(here)} {kind} taken over by name"]
    parts += [f"new {kind}: {shown(fresh)}"] if fresh else []
    parts += [f"{kind} left out: {shown(unused)}"] if unused else []
    return ", ".join(parts)
