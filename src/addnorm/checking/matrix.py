"""The test matrix: combinations of parts, in the smallest sizes that distinguish them."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import cycle, product
from math import lcm
from typing import Any

from pydantic import ValidationError

from addnorm.checking.axes import (
    ARCHITECTURES,
    AXES,
    MIXERS,
    MODELS,
    VARIANTS,
    Architecture,
    Changes,
)
from addnorm.config import problem_of
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig

D_MODEL, N_LAYERS, MAX_LEN = 8, 2, 64

LIMITS = ("max_len", "decoder_max_len")
"""The fields that bound the length of a text."""

CROSSED = ("position", "score", "heads", "pattern", "output")
"""The axes inside attention: the matrix has every combination of them."""

TIMES = 3
"""How often each of these combinations occurs, with different values of the other axes."""

AROUND_MIXERS = ("position", "norm", "placement", "feedforward")
"""The axes that are varied for mixers other than attention; the mixer is fourth in the name."""

USUAL: Mapping[str, str] = {
    "position": "sinusoidal",
    "norm": "layernorm",
    "placement": "pre",
    "score": "scaled_dot",
    "heads": "gqa",
    "pattern": "full",
    "core": "default_core",
    "output": "plain_output",
    "feedforward": "mlp",
}

_FOURTH = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A tiny model: its architecture, and the name of a part on every axis.

    `mixer` replaces score, heads, pattern, core and output; `variant` makes one more change, and
    `own` is a custom part: its field, its configuration and its name.
    """

    family: Architecture
    parts: tuple[tuple[str, str], ...]
    mixer: str | None = None
    variant: str | None = None
    own: tuple[str, Any, str] | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """The name, such as `decoder/rotary/rmsnorm/pre/scaled_dot/gqa/window/sdpa/gated/mlp`."""
        names = [name for _, name in self.parts]
        if self.mixer:
            names.insert(_FOURTH, self.mixer)
        added = [self.variant] if self.variant else []
        return "/".join([self.family, *names, *added, *([self.own[2]] if self.own else [])])

    @classmethod
    def of(cls, name: str) -> "Cell":
        """Return the cell with this name."""
        family, *names = name.split("/")
        variant = names.pop() if names[-1] in VARIANTS else None
        mixer = names.pop(_FOURTH) if names[_FOURTH] in MIXERS else None
        parts = tuple(zip(AROUND_MIXERS if mixer else AXES, names, strict=True))
        families: Mapping[str, Architecture] = {name: name for name in ARCHITECTURES}
        return cls(family=families[family], parts=parts, mixer=mixer, variant=variant)

    def changes(self) -> dict[str, Any]:
        """Return the configuration fields of the cell."""
        changes: dict[str, Any] = {}
        for axis, name in self.parts:
            changes |= AXES[axis][name]
        changes |= MIXERS[self.mixer] if self.mixer else {}
        changes |= VARIANTS[self.variant].changes if self.variant else {}
        changes |= {self.own[0]: self.own[1]} if self.own else {}
        return changes

    def config(self, more: int = 0) -> DecoderConfig | EncoderConfig | EncoderDecoderConfig:
        """Return the configuration, with `more` positions. Raises `ValueError` for a conflict."""
        changes = self.changes()
        start = "attention."
        inside = {name.removeprefix(start): v for name, v in changes.items() if start in name}
        sizes = {"d_model": D_MODEL, "n_layers": N_LAYERS, "max_len": MAX_LEN, "dropout": 0.0}
        given = sizes | {name: value for name, value in changes.items() if start not in name}
        given |= {name: given[name] + more for name in LIMITS if name in given}
        if "attention" not in given:
            given["attention"] = AttentionConfig(**inside)
        return MODELS[self.family](**given)

    def refusal(self) -> str | None:
        """Return the reason why the parts are incompatible; None if they are compatible."""
        try:
            self.config()
        except ValidationError as error:
            return "; ".join(problem_of(e) for e in error.errors())
        return None


def cells() -> Iterator[Cell]:
    """Yield all cells, including invalid ones, always in the same order.

    Every combination of the axes inside attention, with the other axes distributed so that every
    pair of parts occurs; the same for other mixers; and the variants.
    """
    rest = [name for name in AXES if name not in CROSSED]
    for family in ARCHITECTURES:
        yield from _dealt(family, AXES, CROSSED, rest, TIMES)
        around = {name: AXES[name] for name in AROUND_MIXERS}
        for mixer in MIXERS:
            dealt = _dealt(family, around, ("norm", "placement"), ("position", "feedforward"), 1)
            yield from (replace(cell, mixer=mixer) for cell in dealt)
        for variant, change in VARIANTS.items():
            if family in change.architectures:
                yield from _varied(family, variant)


def _dealt(
    family: Architecture,
    axes: Mapping[str, Mapping[str, Changes]],
    crossed: tuple[str, ...],
    dealt: tuple[str, ...] | list[str],
    times: int,
) -> Iterator[Cell]:
    """Yield every combination of crossed axes `times` times, cycling through the other axes."""
    hands = list(product(*(axes[name] for name in dealt)))
    random.Random(f"{family} {dealt}").shuffle(hands)
    every = list(product(*(axes[name] for name in crossed)))
    period = lcm(len(every), len(hands))
    for i, names in enumerate(every * times):
        hand = hands[(i + i // period) % len(hands)]  # after a period one further: no cell twice
        chosen = dict(zip(crossed, names, strict=True)) | dict(zip(dealt, hand, strict=True))
        yield Cell(family=family, parts=tuple((axis, chosen[axis]) for axis in axes))


def _varied(family: Architecture, variant: str) -> Iterator[Cell]:
    """Yield a variant with several placements and patterns, and defaults elsewhere."""
    patterns = cycle(AXES["pattern"])
    for placement in ("post", "pre", "parallel"):
        parts = {**USUAL, "placement": placement, "pattern": next(patterns)}
        yield Cell(family=family, parts=tuple(parts.items()), variant=variant)


def named(pattern: str) -> list[Cell]:
    """Return the cells whose names contain this sequence of parts; `*` is a wildcard.

    Raises `InputError` if there is none.
    """
    matching = [cell for cell in cells() if fnmatchcase(f"/{cell.id}", f"*/{pattern}*")]
    if not matching:
        names = [*ARCHITECTURES, *MIXERS, *VARIANTS, *(n for axis in AXES.values() for n in axis)]
        hint = nearest(pattern.strip("*/").rpartition("/")[2], names)
        raise InputError(f"no cell of the matrix has parts called {pattern!r}.{hint}")
    return matching
