"""Every part there is, read from the unions of configurations: its equation, source and file."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import addnorm
from addnorm.check.families import family_name
from addnorm.errors import InputError, nearest
from addnorm.models import ModelConfig
from addnorm.models.inputs import InputConfig
from addnorm.nn.attention import CoreConfig, OutputConfig, PatternConfig, ScoreConfig
from addnorm.nn.embed import AnyEmbeddingConfig
from addnorm.nn.heads import HeadConfig
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import PositionConfig, ScalingConfig
from addnorm.nn.residuals import ResidualConfig
from addnorm.parts import kind_of, members

FAMILIES: dict[str, Any] = {
    "positions": PositionConfig,
    "scalings": ScalingConfig,
    "norms": NormConfig,
    "placements": ResidualConfig,
    "mixers": MixerConfig,
    "scores": ScoreConfig,
    "patterns": PatternConfig,
    "cores": CoreConfig,
    "outputs": OutputConfig,
    "feedforwards": AnyFeedForwardConfig,
    "embeddings": AnyEmbeddingConfig,
    "inputs": InputConfig,
    "heads": HeadConfig,
    "models": ModelConfig,
}
"""The unions, by what their members are called."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part, as its docstring tells of it; what that leaves out is empty."""

    family: str
    kind: str
    name: str
    equation: str
    source: str
    file: str


def parts(family: str | None = None, modules: Sequence[str] = ()) -> list[Part]:
    """Every part, or those of one family; with those of someone's own in these modules.

    Raises `InputError` for a family that there is not.
    """
    own = [part for module in modules for part in _own(module)]
    known = [*FAMILIES, *dict.fromkeys(part.family for part in own if part.family not in FAMILIES)]
    if family is not None and family not in known:
        hint = nearest(family, known) or f" There are {', '.join(known)}."
        raise InputError(f"no family of parts is called {family!r}.{hint}")
    ours = [part for name in FAMILIES for part in _members(name)]
    return [part for part in [*ours, *own] if family in (None, part.family)]


def module_names(imports: Sequence[str]) -> list[str]:
    """The modules that files and modules to import become."""
    return [Path(name).stem if name.endswith(".py") else name for name in imports]


def _own(module: str) -> Iterator[Part]:
    """The parts that a module of someone's own defines, in its order."""
    for name, config in vars(sys.modules[module]).items():
        if not isinstance(config, type) or config.__module__ != module:
            continue
        try:
            family = family_name(config)
        except InputError:  # no part, or one that may be of several families
            continue
        yield Part(
            family=next((plural for plural in FAMILIES if plural == f"{family}s"), family),
            kind=kind_of(config),
            name=name,
            equation=equation(config),
            source=source(config),
            file=Path(inspect.getfile(config)).name,
        )


def _members(family: str) -> Iterator[Part]:
    configs = members(FAMILIES[family])
    built = {config: _built(config) for config in configs}
    times = Counter(built.values())
    for config in configs:
        # A configuration tells of itself where it begins with its equation, as do those of which
        # several build one module; of all others the module does.
        describes_itself = times[built[config]] > 1 or re.match(
            r"`[^`]*[+(][^`]*`", inspect.getdoc(config) or ""
        )
        described = config if describes_itself else built[config]
        yield Part(
            family=family,
            kind=kind_of(config),
            name=described.__name__,
            equation=equation(described),
            source=source(described) or source(config),
            file=str(Path(inspect.getfile(described)).relative_to(Path(addnorm.__file__).parent)),
        )


def _built(config: type) -> type:
    """The class that a configuration builds, the first if it may be one of several; or itself."""
    build = getattr(config, "build", None)
    built = get_type_hints(build)["return"] if build else config
    return built if isinstance(built, type) else get_args(built)[0]


def equation(part: type) -> str:
    """The first code in the first sentence of the docstring that is more than a name."""
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)", inspect.getdoc(part) or "", maxsplit=1)[0]
    codes = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", sentence)]
    return next((code for code in codes if re.search(r"[^\w.&]", code)), "")


def source(part: type) -> str:
    """The first paper that the docstring names, with the place in it."""
    text = " ".join((inspect.getdoc(part) or "").split())
    found = re.search(
        r"\b[A-Z][^\s(),;:.`]*(?: et al\.| &(?: [A-Z][^\s(),;:.`]*)+| Team)? (?:19|20)\d\d"
        r"(?:, (?:§|eq\. |fig\. |alg\. |appendix )[\w.–]*\w)?",
        text,
    )
    return found[0] if found else ""
