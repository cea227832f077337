"""The matrix: combinations of parts in the smallest sizes that tell the parts apart."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import cycle, product
from typing import Any

from pydantic import ValidationError

from addnorm.check.axes import (
    ARCHITECTURES,
    AXES,
    MIXERS,
    MODELS,
    VARIANTS,
    Architecture,
    Changes,
)
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig

D_MODEL, N_LAYERS, MAX_LEN = 8, 2, 64

CROSSED = ("position", "score", "heads", "pattern", "output")
"""The axes that meet inside of attention: every combination of them is in the matrix."""

TIMES = 3
"""How often each, with other values of the other axes, which are dealt out."""

AROUND_MIXERS = ("position", "norm", "placement", "feedforward")
"""What is varied around a mixer other than attention, which stands fourth in the name."""

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
    """One tiny model: an architecture, and the name of its part on every axis.

    `mixer` stands in place of score, heads, pattern, core and output; `variant` changes one part
    more, and `own` is a part of someone's own, by its field, with its name.
    """

    family: Architecture
    parts: tuple[tuple[str, str], ...]
    mixer: str | None = None
    variant: str | None = None
    own: tuple[str, Any, str] | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """Such as `decoder/rotary/rmsnorm/pre/scaled_dot/gqa/window/sdpa/gated/mlp`."""
        names = [name for _, name in self.parts]
        if self.mixer:
            names.insert(_FOURTH, self.mixer)
        added = [self.variant] if self.variant else []
        return "/".join([self.family, *names, *added, *([self.own[2]] if self.own else [])])

    @classmethod
    def of(cls, name: str) -> "Cell":
        """The cell of this name."""
        family, *names = name.split("/")
        variant = names.pop() if names[-1] in VARIANTS else None
        mixer = names.pop(_FOURTH) if names[_FOURTH] in MIXERS else None
        parts = tuple(zip(AROUND_MIXERS if mixer else AXES, names, strict=True))
        [architecture] = [one for one in ARCHITECTURES if one == family]
        return cls(family=architecture, parts=parts, mixer=mixer, variant=variant)

    def changes(self) -> dict[str, Any]:
        """What its fields are."""
        found: dict[str, Any] = {}
        for axis, name in self.parts:
            found |= AXES[axis][name]
        found |= MIXERS[self.mixer] if self.mixer else {}
        found |= VARIANTS[self.variant].changes if self.variant else {}
        found |= {self.own[0]: self.own[1]} if self.own else {}
        return found

    def config(self) -> DecoderConfig | EncoderConfig | EncoderDecoderConfig:
        """The model. Raises `ValueError` for parts that make no sense together."""
        changes = self.changes()
        start = "attention."
        inside = {name.removeprefix(start): v for name, v in changes.items() if start in name}
        sizes = {"d_model": D_MODEL, "n_layers": N_LAYERS, "max_len": MAX_LEN, "dropout": 0.0}
        given = sizes | {name: value for name, value in changes.items() if start not in name}
        if "attention" not in given:
            given["attention"] = AttentionConfig(**inside)
        return MODELS[self.family](**given)

    def refusal(self) -> str | None:
        """Why the parts make no sense together; None where they do."""
        try:
            self.config()
        except ValidationError as error:
            return "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
        return None


def cells() -> Iterator[Cell]:
    """Every cell, the refused ones too, always in the same order.

    What meets inside of attention in every combination, with the other axes dealt out so that
    every pair of parts meets; other mixers likewise; and the variants.
    """
    rest = [name for name in AXES if name not in CROSSED]
    for family in ARCHITECTURES:
        yield from _dealt(family, AXES, CROSSED, rest, TIMES)
        around = {name: AXES[name] for name in AROUND_MIXERS}
        for mixer in MIXERS:
            found = _dealt(family, around, ("norm", "placement"), ("position", "feedforward"), 1)
            yield from (replace(cell, mixer=mixer) for cell in found)
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
    """Every combination of the crossed axes, `times` each, with values of the others in turn."""
    hands = list(product(*(axes[name] for name in dealt)))
    random.Random(f"{family} {dealt}").shuffle(hands)
    every = list(product(*(axes[name] for name in crossed)))
    for names, hand in zip(every * times, cycle(hands), strict=False):
        chosen = dict(zip(crossed, names, strict=True)) | dict(zip(dealt, hand, strict=True))
        yield Cell(family=family, parts=tuple((axis, chosen[axis]) for axis in axes))


def _varied(family: Architecture, variant: str) -> Iterator[Cell]:
    """A variant in some placements, each with a pattern; what is not changed is usual."""
    patterns = cycle(AXES["pattern"])
    for placement in ("post", "pre", "parallel"):
        parts = {**USUAL, "placement": placement, "pattern": next(patterns)}
        yield Cell(family=family, parts=tuple(parts.items()), variant=variant)


def named(pattern: str) -> list[Cell]:
    """The cells with parts named so, one after another; `*` stands for anything.

    Raises `InputError` where there is none.
    """
    found = [cell for cell in cells() if fnmatchcase(f"/{cell.id}", f"*/{pattern}*")]
    if not found:
        names = [*ARCHITECTURES, *MIXERS, *VARIANTS, *(n for axis in AXES.values() for n in axis)]
        hint = nearest(pattern.strip("*/").rpartition("/")[2], names)
        raise InputError(f"no cell of the matrix has parts called {pattern!r}.{hint}")
    return found
