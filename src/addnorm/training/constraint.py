"""Constraints on weights, applied after each step: on the norm of rows, and those of modules."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field, PositiveFloat
from torch import nn

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.training.parallel.tensors import local, piece_within_stage

CLASSES = "head.proj.weight"
"""The last matrix of a classifier."""


@config
class MaxNormConfig:
    """Scale down every row of chosen matrices whose norm is above a bound.

    `w ← w min(1, bound / ‖w‖₂)` for each row `w`, at the start and after each step (Srivastava et
    al. 2014, §5.1; Kim 2014, §2.1). A row has the incoming weights of one output, or of one filter
    of a convolution. Averages of these weights over time are within the bound too.
    """

    kind: Literal["max_norm"] = "max_norm"
    bound: PositiveFloat = 3.0
    """The largest Euclidean norm of a row."""
    parameters: Annotated[str, Field(min_length=1)] = CLASSES
    """The name of the weights in `model.named_parameters()`, in which `*` stands for any
    characters; by default the last matrix of a classifier.
    """

    def build(self, model: nn.Module) -> "MaxNorm":
        """Find the weights. Raises `InputError` if the name matches none, or matches a vector."""
        return MaxNorm(weights_named(model, self.parameters), bound=self.bound)


@runtime_checkable
class Bounded(Protocol):
    """A module that keeps weights of its own within bounds."""

    def keep_bounds(self) -> None:
        """Move its weights back into their bounds, in place."""
        ...


def constraint_on(model: nn.Module, config: MaxNormConfig | None) -> Callable[[], None]:
    """Apply all constraints, and return the function that applies them after each step.

    They are those that modules have themselves, and the one that is given. Raises `InputError` if
    the name of its weights matches none, or matches a vector.
    """
    all_of = [module.keep_bounds for module in model.modules() if isinstance(module, Bounded)]
    if config is not None:
        all_of.append(config.build(model).apply)

    def apply() -> None:
        for each in all_of:
            each()

    apply()
    return apply


class MaxNorm:
    """A largest norm for the rows of some weights."""

    def __init__(self, weights: Sequence[nn.Parameter], *, bound: float) -> None:
        self.weights = weights
        self.bound = bound

    @torch.no_grad()
    def apply(self) -> None:
        """Scale down, in place, the rows that are too long."""
        for weight in self.weights:
            rows, piece = local(weight), piece_within_stage(weight)
            if piece is None or piece.axis == 0:
                rows.renorm_(2, 0, self.bound)
            else:
                norms = piece.group.sum(rows.flatten(1).square().sum(1)).sqrt()
                rows.mul_((self.bound / (norms + 1e-7)).clamp(max=1.0)[:, None])


def weights_named(model: nn.Module, pattern: str) -> list[nn.Parameter]:
    """The learned weights whose name matches the pattern.

    Raises `InputError` if there are none, or if one of them has a single axis: a bias or a gain has
    no rows.
    """
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matches = {name: p for name, p in learned.items() if fnmatchcase(name, pattern)}
    matrices = [name for name, p in learned.items() if p.ndim > 1]
    if not matches:
        near = get_close_matches(pattern, matrices, 1, 0.0) or ["none"]
        raise InputError(
            f"train.constraint.parameters = {pattern!r}: no learned weights of the model have this "
            f"name; the nearest is {near[0]!r}"
        )
    for name, parameter in matches.items():
        if parameter.ndim < 2:
            raise InputError(
                f"train.constraint.parameters = {pattern!r}: {name} has one axis and so no rows; "
                f"{len(matrices)} weights have rows, {matrices[0]!r} first"
            )
    return list(matches.values())
